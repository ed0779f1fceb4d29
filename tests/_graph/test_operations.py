"""Recorded operations: what they read and modify, and on which others they depend."""

from __future__ import annotations

from typing import Any

import torch

from tests._graph.conftest import contents_of, op_of
from torchfake import deferred_mode, materialize_tensor
from torchfake._core.source_location import SourceLocation
from torchfake._graph.externals import External
from torchfake._graph.operations import Contents, Op, dependencies

aten = torch.ops.aten


def names(ops: list[Op]) -> list[str]:
    return [op.name for op in ops]


def test_arguments() -> None:
    """Deferred fakes become reads and real tensors externals, also in lists of arguments."""
    real = torch.ones(2)
    with deferred_mode():
        one, other = torch.zeros(2), torch.zeros(2)
        joined = torch.cat([one, real, other])
    op = op_of(joined)
    assert [read.contents for read in op.reads()] == [contents_of(one), contents_of(other)]
    (external,) = op.arguments_of(External)
    assert external.tensor.data_ptr() == real.data_ptr()


def test_outputs_and_mutated_cells() -> None:
    with deferred_mode():
        values, indices = torch.zeros(3).max(0)
        op = op_of(values)
        values.add_(1)
    cells = [contents_of(values).cell, contents_of(indices).cell]
    assert [output.position for output in op.outputs] == [0, 1]
    assert [*op.modified_cells()] == [output.cell for output in op.outputs] == cells
    write = op_of(values)
    assert write.outputs == ()
    assert [*write.modified_cells()] == list(write.mutated) == cells[:1]


def test_contents_are_those_after_a_write() -> None:
    """An operation that has read the contents before is not affected."""
    with deferred_mode():
        base = torch.zeros(3)
        before = contents_of(base)
        double = base * 2
        base.add_(1)
    after = contents_of(base)
    assert after is not before
    assert after.cell is before.cell
    assert [read.contents for read in op_of(double).reads()] == [before]
    assert double.tolist() == [0, 0, 0]


def test_views_are_no_operations() -> None:
    with deferred_mode():
        base = torch.zeros(3, 4)
        view = base.t()[1:].unsqueeze(0)
    assert contents_of(view) == contents_of(base)


def test_source_location() -> None:
    with deferred_mode():
        tensor = torch.zeros(3)
    op = op_of(tensor)
    assert isinstance(op.source_location, SourceLocation)
    assert str(op) == f"aten.zeros.default at {op.source_location}"
    assert "test_operations.py" in str(op)
    assert str(Op(aten.zeros.default, ([3],), {}, None)) == "aten.zeros.default"


def test_dependencies_are_in_recorded_order() -> None:
    with deferred_mode():
        a = torch.zeros(2)
        b = torch.ones(2)
        unrelated = torch.full((2,), 7.0)
        c = a + b
        c.mul_(3)
    ops = dependencies([op_of(c)])
    assert names(ops) == [
        "aten.zeros.default", "aten.ones.default", "aten.add.Tensor", "aten.mul_.Tensor"
    ]  # fmt: skip
    assert [op.number for op in ops] == sorted(op.number for op in ops)
    assert dependencies([None, op_of(c), op_of(a)]) == ops
    assert op_of(unrelated) not in ops


def test_cached_results_depend_on_nothing() -> None:
    with deferred_mode():
        a = torch.zeros(2)
        b = a + 1
    op = op_of(b)
    op.cached = {}
    assert dependencies([op]) == [op]
    assert dependencies([op], ignore_cached=True) == [op_of(a), op]


def test_dependencies_of_a_known_digest_are_left_out() -> None:
    with deferred_mode():
        a = torch.zeros(2)
        b = a + 1
    op = op_of(b)
    op.digest = b"known"
    assert dependencies([op], ignore_cached=True) == [op]
    assert dependencies([op]) == [op_of(a), op]


def test_a_draw_depends_on_uncounted_draws_before_it() -> None:
    """Until one of them has been replayed; a counted draw has an offset, and needs no other."""
    with deferred_mode():
        counted = torch.rand(20)
        uncounted = torch.bernoulli(torch.full((200,), 0.5))
        last = torch.rand(20)
        assert op_of(counted) not in dependencies([op_of(last)])
        assert op_of(uncounted) in dependencies([op_of(last)])
        materialize_tensor(uncounted)
        assert dependencies([op_of(last)]) == [op_of(last)]


def test_contents_without_an_operation() -> None:
    """Memory that nobody has written."""
    with deferred_mode():
        tensor = torch.empty(3)
    contents: Any = contents_of(tensor)
    assert isinstance(contents, Contents)
    assert contents.op is None
    assert contents.cell.num_bytes == 12
