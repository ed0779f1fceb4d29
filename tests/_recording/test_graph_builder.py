"""What the graph refers to, how long its operations live, and what cannot be recorded."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from tests._recording.conftest import live_ops
from torchfake import (
    deferred_init,
    deferred_mode,
    errors,
    is_deferred,
    materialize_tensor,
)
from torchfake._core.schemas import traits_of
from torchfake._recording import record


def test_operations_of_tensors_that_are_gone_are_freed() -> None:
    """Of 100 layers one is kept, with the operations of one."""
    one = deferred_init(nn.Linear, 8, 8)
    alone = live_ops()
    del one
    none = live_ops()
    layers = deferred_init(lambda: [nn.Linear(8, 8) for _ in range(100)])
    kept = layers[40]
    del layers
    assert live_ops() - none == alone - none
    assert is_deferred(kept)


def test_dead_writes_are_freed() -> None:
    """A fill that is overwritten leaves no operation."""
    with deferred_mode():
        weight = torch.empty(10, 10)
        weight.uniform_()
        before = live_ops()
        for _ in range(10):
            weight.normal_()
    assert live_ops() == before


def test_the_graph_has_no_reference_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        module = deferred_init(nn.Linear, 4, 4)
        reference = weakref.ref(module.weight._fake_storage.deferred.contents.op)
        del module
        assert reference() is None
    finally:
        gc.enable()


def test_uncounted_draws_are_freed() -> None:
    references = []
    for _ in range(3):
        chances = torch.full((100, 100), 0.5)
        references.append(weakref.ref(chances))
        materialize_tensor(deferred_init(torch.bernoulli, chances))
        del chances
    gc.collect()
    assert [reference() for reference in references[:2]] == [None, None]
    before = live_ops()
    for _ in range(5):
        deferred_init(lambda: [torch.randn(8) for _ in range(10)])
    assert live_ops() <= before + 1


# What cannot be recorded.


def test_an_argument_that_cannot_be_kept() -> None:
    """It is refused when it is recorded, and the tensor is unchanged."""
    op = torch.ops.aten.add.Tensor
    with deferred_mode():
        weight = torch.ones(3)
    with pytest.raises(errors.RecordError, match="was given a object, which cannot be kept"):
        record.record(op, traits_of(op), (weight, object()), {}, lambda *_: None)
    assert materialize_tensor(weight).tolist() == [1, 1, 1]
