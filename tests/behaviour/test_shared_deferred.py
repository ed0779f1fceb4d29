"""Deferred tensors that several threads read at the same time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, materialize_tensor
from torchfake._replay import replay

NUM_TRIALS = 60


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    """Python changes the thread as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """The results of functions that two or more threads call at the same time."""
    barrier = threading.Barrier(len(functions), timeout=30)

    def call(function: Callable[[], Any]) -> Any:
        barrier.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(call, functions))


def deferred() -> torch.Tensor:
    with deferred_mode():
        return torch.randn(3000)


def test_readers_share_one_memory() -> None:
    """What one thread writes through numpy, the other sees, as in eager mode."""
    for _ in range(NUM_TRIALS):
        first, second = at_once(*[deferred().numpy] * 2)
        first[0] = 7
        assert second[0] == 7


def test_a_reader_and_a_materialization_share_one_memory() -> None:
    for _ in range(NUM_TRIALS):
        x = deferred()
        array, tensor = at_once(x.detach().numpy, lambda x=x: materialize_tensor(x))
        tensor[0] = 7
        assert array[0] == 7


def test_reads_of_a_chain_have_its_values() -> None:
    """Each reader caches what it has computed, and drops what was cached before it."""
    for _ in range(NUM_TRIALS):
        with deferred_mode():
            x = torch.arange(100.0)
            y = x.clone()

            def work(t: torch.Tensor = x) -> list[float]:
                return [t.add_(1)[-1].item() for _ in range(20)]

            def follow(t: torch.Tensor = y) -> list[float]:
                return [t.mul_(1)[-1].item() for _ in range(20)]

            added, multiplied = at_once(work, follow)
        assert added == [100.0 + i for i in range(20)]
        assert multiplied == [99.0] * 20


def test_nothing_cached_is_dropped_under_another_replay() -> None:
    """That replay may have skipped the operations before, as their results were cached."""
    with deferred_mode():
        x = torch.ones(3)
        x.add_(1).tolist()
        before = x._fake_storage.deferred.op  # type: ignore[attr-defined]
        assert before.cached is not None
        with replay._UnderWay():
            x.add_(1).tolist()
        assert before.cached is not None
        x.add_(1).tolist()
        assert x.tolist() == [4.0] * 3
