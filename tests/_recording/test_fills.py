"""Functions of torch.nn.init on deferred tensors, called again and again, replay as in eager."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests._patches.sources.test_initializers import CALLS, DTYPES, TENSORS, bits, made, outcome
from torchfake import deferred_init, deferred_mode, materialize_module, materialize_tensor
from torchfake._cache import cache
from torchfake._graph.operations import Read
from torchfake._recording import fills

init = nn.init
TIMES = 4


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", False)
    cache.initialisers.clear()


def without_state(call: Callable[[Any], Any], tensor: Any) -> list[Any]:
    """What is seen of one call, but for the generator, which is moved when it is read."""
    try:
        result: Any = call(tensor) is tensor
    except Exception as error:
        result = type(error)
    return [result, tensor._version, tensor.requires_grad]


def assert_as_eager(
    call: Callable[[Any], Any], make: Callable[[], Any], see: Callable[..., Any] = without_state
) -> None:
    torch.manual_seed(3)
    real, expected = made(call, make, TIMES, see)
    after = torch.get_rng_state().tolist(), torch.rand(2).tolist()
    torch.manual_seed(3)
    with deferred_mode():
        fakes, found = made(call, make, TIMES, see)
        assert found == expected
    assert (torch.get_rng_state().tolist(), torch.rand(2).tolist()) == after
    if expected[0][0] is True:
        for fake, tensor in reversed([*zip(fakes, real, strict=True)]):
            assert bits(materialize_tensor(fake)) == bits(tensor)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", CALLS)
def test_calls_as_in_eager(name: str) -> None:
    for make, dtype in itertools.product(TENSORS.values(), DTYPES):
        assert_as_eager(CALLS[name], functools.partial(make, dtype))


@pytest.mark.parametrize("name", ["kaiming_uniform_", "normal_", "ones_", "constant_ -0"])
def test_where_the_generator_is_read_and_set_in_between(name: str) -> None:
    def seeded(tensor: Any) -> Any:
        torch.manual_seed(5)
        return CALLS[name](tensor)

    def torn(tensor: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            CALLS[name](torch.empty(20, 30))
        return CALLS[name](tensor)

    for call in (CALLS[name], seeded, torn):
        for see in (outcome, without_state):
            assert_as_eager(call, lambda: nn.Parameter(torch.empty(20, 30)), see)


@pytest.mark.parametrize("change", ["half", "twice", "view", "twin", "resized", "real", "read"])
def test_tensors_that_are_not_plain(change: str) -> None:
    def call(tensor: Any) -> Any:
        init.normal_(tensor, 1.0, 0.5)
        if change == "half":
            init.uniform_(tensor[:10])
        elif change == "twice":
            tensor.mul_(2.0)
            init.normal_(tensor.view(600), 1.0, 0.5)
        elif change == "view":
            init.normal_(tensor.t(), 1.0, 0.5)
        elif change == "twin":
            init.ones_(tensor.view(torch.int32))
        elif change == "resized":
            tensor.resize_(30, 30)
            init.normal_(tensor, 1.0, 0.5)
            tensor.resize_(20, 30)
            init.uniform_(tensor)
        elif change == "real" and hasattr(tensor, "_fake_storage"):
            materialize_tensor(tensor)
        elif change == "read":
            tensor.sum().item()
        init.normal_(tensor, 1.0, 0.5)
        return tensor

    assert_as_eager(call, lambda: torch.empty(20, 30))


def test_what_is_remembered_is_recorded_without_a_dispatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calls() -> Any:
        weights = [torch.empty(20, 30) for _ in range(3)]
        ones = [torch.empty(20, 30) for _ in range(3)]
        for weight, one in zip(weights, ones, strict=True):
            init.kaiming_uniform_(weight, a=5**0.5)
            init.ones_(one)
        return weights[-1], ones[-1]

    recorded = []
    again = fills.record_again
    monkeypatch.setattr(
        "torchfake._patches.sources.initializers._record",
        lambda *args: recorded.append(again(*args)) or recorded[-1],
    )
    weight, one = deferred_init(calls)
    assert recorded == [True] * 4
    for tensor, function, numbers in ((weight, "uniform_", 2), (one, "fill_", 1)):
        op = tensor._fake_storage.deferred.op
        assert op.func._schema.name == f"aten::{function}"
        assert type(op.args[0]) is Read
        assert len(op.args) == 1 + numbers


def test_lines_are_those_of_each_call() -> None:
    def calls() -> Any:
        first, second = torch.empty(8, 8), torch.empty(8, 8)
        init.zeros_(torch.empty(8, 8))
        init.zeros_(first)
        init.zeros_(second)
        return first, second

    ops = [tensor._fake_storage.deferred.op for tensor in deferred_init(calls)]
    lines = [op.source_location.line for op in ops]
    assert lines[1] == lines[0] + 1


def test_a_model_in_two_threads() -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))

    torch.manual_seed(3)
    expected = build().state_dict()
    deferred_init(build)
    found: dict[int, Any] = {}

    def run(i: int) -> None:
        with deferred_mode():
            found[i] = build()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.manual_seed(3)
    module = materialize_module(deferred_init(build))
    for name, value in module.state_dict().items():
        assert bits(value) == bits(expected[name])
    for module in found.values():
        assert all(torch.isfinite(p).all() for p in materialize_module(module).parameters())
