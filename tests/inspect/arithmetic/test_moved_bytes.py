"""Bytes that calls move, against counts by hand; tests/inspect/timing/test_work.py has more."""

from __future__ import annotations

from typing import Any

import torch

from torchfake import fake_mode
from torchfake.inspect.arithmetic.moved_bytes import bytes_touched, launches_nothing, memory_of

aten = torch.ops.aten


def test_views_and_empty_memory_launch_nothing() -> None:
    for op in (aten.view.default, aten.empty.memory_format, aten.detach.default):
        assert launches_nothing(op)
    for op in (aten.add.Tensor, aten.zeros.default, aten._to_copy.default):
        assert not launches_nothing(op)


def test_bytes_of_expanded_dims_count_once() -> None:
    with fake_mode():
        x: Any = torch.empty(4, 1).expand(4, 1000)
    assert bytes_touched(x._fake_meta) == 16


def test_what_is_written_in_place_is_read_and_written() -> None:
    with fake_mode():
        x, y = torch.empty(8), torch.empty(8)
        found = memory_of(aten.add_.Tensor, (x, y), {}, x.add_(y))
    assert (len(found.read), len(found.written), found.num_bytes) == (2, 1, 3 * 32)


def test_of_an_operator_that_writes_nothing_nothing_is_written() -> None:
    with fake_mode():
        x = torch.ones(8)
        assert memory_of(aten._local_scalar_dense.default, (x[0],), {}, 1.0).written == []
