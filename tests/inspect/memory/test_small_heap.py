"""The garbage collector of Python: left as it was, and garbage of runs is collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from torchfake import estimate
from torchfake.inspect.memory.small_heap import small_heap


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    """The tests' own process freezes what they import."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    gc.unfreeze()
    if is_frozen:
        gc.freeze()


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_objects_are_frozen_and_thawed() -> None:
    assert gc.get_freeze_count() == 0
    with small_heap():
        outer = gc.get_freeze_count()
        assert outer > 0
        gone, kept = weakref.ref(Cycle()), Cycle()
        with small_heap():
            assert gone() is None  # collected before it could be frozen
            assert kept.itself is kept
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    lost = weakref.ref(Cycle())
    gc.collect()
    assert lost() is None


def test_a_failing_run_thaws() -> None:
    try:
        with small_heap():
            raise ValueError
    except ValueError:
        assert gc.get_freeze_count() == 0


def test_estimates_are_the_same() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    found = estimate(net, torch.ones(2, 4), optimizer="adamw")
    assert gc.get_freeze_count() == 0
    gc.freeze()
    again = estimate(net, torch.ones(2, 4), optimizer="adamw")
    assert found.to_dict() == again.to_dict()
    assert found.to_pandas().equals(again.to_pandas())


def test_what_the_user_has_set_stays() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with small_heap():  # some of what is frozen may have died on another thread
            assert 0 < gc.get_freeze_count() <= before
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        with small_heap():
            assert gc.get_freeze_count() == 0
            assert not gc.isenabled()
    finally:
        gc.enable()
