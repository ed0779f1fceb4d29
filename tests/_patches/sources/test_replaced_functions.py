"""What somebody has replaced in torch is called, before a mode, in it and after it; and what is
learned of one layer is not applied to others that are not like it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_mode, materialize_module

pytestmark = pytest.mark.usefixtures("nothing_learned")


def state_of(layer: Any) -> list[Any]:
    tensors = [*layer.parameters(), *layer.buffers()]
    return [(t._version, t.flatten()[0].item()) for t in tensors]


def assert_as_eager(seen: Callable[[], list[Any]]) -> None:
    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_layers_with_tied_tensors_teach_nothing() -> None:
    def seen() -> list[Any]:
        norm: Any = nn.BatchNorm1d(100)
        norm.running_var = norm.running_mean
        norm.reset_parameters()
        group: Any = nn.GroupNorm(1, 100)
        group.bias = group.weight
        group.reset_parameters()
        made = [nn.BatchNorm1d(100), nn.GroupNorm(1, 100), nn.BatchNorm1d(3000)]
        return [state_of(layer) for layer in made]

    assert_as_eager(seen)


def _with_gain(self: Any) -> None:
    nn.init.constant_(self.weight, getattr(self, "gain", 0.0))


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_a_reset_that_is_not_torchs(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.LayerNorm, "reset_parameters", _with_gain)
    with mode():
        made: list[Any] = [nn.LayerNorm(100, bias=False) for _ in range(5)]
        for i, layer in enumerate(made):
            layer.gain = i + 1.0
            layer.reset_parameters()
    if mode is deferred_mode:
        for layer in made:
            materialize_module(layer)
    assert [layer.weight[0].item() for layer in made] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_initialiser_that_is_not_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def ones(tensor: Any) -> Any:
        calls.append(1)
        with torch.no_grad():
            return tensor.fill_(len(calls))

    monkeypatch.setattr(nn.init, "ones_", ones)
    with fake_mode():
        made = [nn.init.ones_(torch.empty(100))[0].item() for _ in range(5)]
    assert made == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_methods_that_a_reset_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> list[Any]:
        norms: list[Any] = [nn.BatchNorm1d(100) for _ in range(5)]
        for norm in norms:
            norm.running_mean.fill_(5)
        norms[0].reset_running_stats = lambda: None
        norms[0].reset_parameters()
        with monkeypatch.context() as patched:
            patched.setattr(type(norms[0]), "reset_running_stats", lambda self: None, raising=False)
            norms[1].reset_parameters()
        norms[2].reset_parameters()
        return [state_of(norm) for norm in norms]

    assert_as_eager(seen)


def test_functions_that_an_initialiser_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    with deferred_mode():
        for _ in range(4):
            nn.Linear(100, 100)
        monkeypatch.setattr(nn.init, "_calculate_fan_in_and_fan_out", lambda _: (10**10, 1))
        layer = nn.Linear(100, 100)
    assert materialize_module(layer).bias.abs().max() <= 1e-5


def test_attributes_in_the_place_of_parameters() -> None:
    def seen() -> list[Any]:
        for _ in range(4):
            nn.LayerNorm(100)
        layer: Any = nn.LayerNorm(100)
        vars(layer)["bias"] = plain = torch.zeros(100)
        layer.reset_parameters()
        return [plain._version, *(parameter._version for parameter in layer.parameters())]

    assert_as_eager(seen)


def test_a_parameter_that_is_not_there() -> None:
    def seen() -> list[Any]:
        for _ in range(4):
            nn.Linear(100, 100, bias=False)
        layer = nn.Linear(100, 100)
        layer._parameters.pop("bias")
        with pytest.raises(AttributeError):
            layer.reset_parameters()
        return []

    assert_as_eager(seen)


def test_what_is_replaced_inside_a_mode_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As LLaVA's ``disable_torch_init`` does."""
    torchs = vars(nn.Linear)["reset_parameters"]
    try:
        with fake_mode():
            nn.Linear.reset_parameters = _with_gain  # type: ignore[method-assign]
        assert nn.Linear.reset_parameters is _with_gain
        with fake_mode():
            nn.Linear(3, 4)
        assert nn.Linear.reset_parameters is _with_gain
    finally:
        nn.Linear.reset_parameters = torchs  # type: ignore[method-assign]


@pytest.mark.parametrize("order", [(fake_mode, deferred_mode), (deferred_mode, fake_mode)])
def test_initialisers_in_a_mode_of_the_other_kind(order: Any) -> None:
    first, second = order
    with first():
        made = [nn.Linear(100, 100) for _ in range(4)]
        nn.init.normal_(made[0].weight)
    with second():
        made[0].reset_parameters()
        nn.init.normal_(made[0].weight)
        nn.Linear(100, 100).reset_parameters()
    if first is deferred_mode:
        materialize_module(made[0])


REPLACED = """
import torch, functools
calls = []
original = torch.empty
def empty(*args, **kwargs):
    calls.append(args)
    return original(*args, **kwargs)
torch.empty = {replacement}
import torchfake
with torchfake.fake_mode():
    for _ in range(4):
        torch.nn.Linear(3, 4)
assert calls.count(((4, 3),)) == calls.count((4,)) == 4, calls
"""


@pytest.mark.parametrize(
    "replacement", ["empty", "lambda *a, **k: empty(*a, **k)", "functools.partial(empty)"]
)
def test_factories_that_were_replaced_before_the_import(replacement: str) -> None:
    script = REPLACED.format(replacement=replacement)
    subprocess.run([sys.executable, "-c", script], check=True)


def test_meta_init_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchfake

    original, other = torchfake.meta_init, object()
    with monkeypatch.context() as patched:
        patched.setattr(torchfake, "meta_init", other)
        assert torchfake.meta_init is other
    assert torchfake.meta_init is original
    del torchfake.meta_init
    assert torchfake.meta_init is original
