"""Wrong arguments of public functions: the error names the argument, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchfake
from torchfake import deferred_init, deferred_mode, errors, fake_like, fake_mode, is_deferred

WRONG: list[Any] = ["no such", 3.5, object(), [], torch.int32, lambda: 1, -1]


def layer() -> nn.Module:
    return deferred_init(nn.Linear, 3, 4)


def tensor() -> torch.Tensor:
    return layer().weight  # type: ignore[return-value]


CALLS: dict[str, tuple[Callable[[], Any], Callable[..., Any], dict[str, list[Any]]]] = {
    "materialize_module": (
        layer,
        torchfake.materialize_module,
        {
            "buffers_only": [*WRONG, None, 1],
            "check_fn": [w for w in WRONG if w is not None],
            "device": [*WRONG, "meta", True, "cuda:99"],
            "dtype": [*WRONG, 1, torch.bool],
            "checkpoint": WRONG,
            "strict": [*WRONG, None, 0],
            "threads": [*WRONG, 0, True],
            "progress": [*WRONG, 1],
        },
    ),
    "materialize_tensor": (
        tensor,
        torchfake.materialize_tensor,
        {"device": [*WRONG, "meta", torch.device("meta"), "cuda:99"], "dtype": [*WRONG, 1]},
    ),
    "materialize": (layer, torchfake.materialize, {"keep_cache": [*WRONG, None, 1]}),
    "dematerialize_module": (layer, torchfake.dematerialize_module, {"check_fn": WRONG}),
    "save_materialized": (
        layer,
        torchfake.save_materialized,
        {
            "directory": [3.5, None, object(), b"x", ""],
            "max_shard_size": [*WRONG, "0", None],
            "threads": [*WRONG, 0],
            "progress": [*WRONG, 1],
        },
    ),
    "fake_like": (
        lambda: torch.ones(2),
        fake_like,
        {"device": [3.5, object(), [], "no such", True, torch.int32, -1]},
    ),
}

CASES = [
    pytest.param(call, name, wrong, id=f"{call}-{name}-{i}")
    for call, (_, _, wrongs) in CALLS.items()
    for name, values in wrongs.items()
    for i, wrong in enumerate(values)
]


@pytest.mark.parametrize(("call", "name", "wrong"), CASES)
def test_the_argument_is_named(call: str, name: str, wrong: Any, tmp_path: Path) -> None:
    make, function, _ = CALLS[call]
    target = make()
    arguments: dict[str, Any] = {name: wrong}
    if call == "save_materialized":
        arguments = {"directory": tmp_path / "out", **arguments}
    with pytest.raises((TypeError, ValueError), match=rf"^{name} is "):
        function(target, **arguments)
    assert not isinstance(target, nn.Module) or is_deferred(target)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "function",
    [torchfake.materialize_module, torchfake.dematerialize_module, torchfake.materialize_tensor,
     torchfake.materialize, torchfake.is_deferred, torchfake.graph],
)  # fmt: skip
@pytest.mark.parametrize("wrong", [None, 3, "Linear", nn.Linear, object()])
def test_what_is_no_module_or_tensor(function: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(errors.NotDeferredError, match=rf"^{function.__name__} takes a "):
        function(wrong)


INPUTS = fake_like(torch.ones(2, 3))
INSPECTING: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "gpu": (torchfake.summary, ["no such", 3.5, [], -1]),
    "backward": (torchfake.check, ["no", 1, None]),
    "autocast": (torchfake.estimate, [3.5, torch.int32, [], -1]),
    "optimizer": (torchfake.estimate, ["no such", 3]),
    "fake_cuda": (lambda *_, fake_cuda: fake_mode(fake_cuda=fake_cuda), ["no such", -1]),
}


@pytest.mark.parametrize("name", INSPECTING)
def test_arguments_of_inspection_are_named(name: str) -> None:
    function, wrongs = INSPECTING[name]
    for wrong in wrongs:
        with pytest.raises((TypeError, ValueError), match=name):
            function(nn.Linear(3, 4), INPUTS, **{name: wrong})


@pytest.mark.parametrize("name", ["overrides_a", "overrides_b", "dtype"])
def test_arguments_of_diff_are_named(name: str) -> None:
    for wrong in (3.5, object(), -1, torch.int32):
        with pytest.raises(TypeError, match=rf"^{name} is "):
            torchfake.diff(nn.Linear(1, 1), nn.Linear(1, 1), **{name: wrong})


def test_meta_keeps_the_record() -> None:
    """There are no values there: it is refused, whatever the module is made of."""
    module = layer()
    with pytest.raises(errors.DeviceError, match="its record would be lost"):
        torchfake.materialize_module(module, device="meta")
    assert is_deferred(module)
    torchfake.materialize_module(module)
    assert module.weight.device.type == "cpu"


def test_a_device_that_only_a_mode_has() -> None:
    module = layer()
    if torch.cuda.is_available():
        pytest.skip("it is there")
    with (
        deferred_mode(fake_cuda=True),
        pytest.raises(errors.DeviceError, match=r"^device is 'cuda"),
    ):
        torchfake.materialize_module(module, device="cuda")


def test_device_and_dtype_of_a_tensor() -> None:
    torch.manual_seed(0)
    expected = nn.Linear(3, 4).weight.detach().to(torch.bfloat16)
    torch.manual_seed(0)
    weight = tensor()
    made = torchfake.materialize_tensor(weight, device="cpu", dtype=torch.bfloat16)
    assert made is weight
    assert torch.equal(made, expected)
    with deferred_mode(fake_cuda=True):
        there = torch.ones(3, device="cuda")
        count = torch.arange(3)
    assert torchfake.materialize_tensor(there, device="cpu").device.type == "cpu"
    assert torchfake.materialize_tensor(count, dtype=torch.float64).dtype is torch.int64
