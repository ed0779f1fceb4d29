"""Which operations are fused, and which tasks depend on each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests._replay.conftest import before_each_tile, task_graph_of
from tests.tiny_tiles import tiny_tiles
from torchfake import deferred_init, deferred_mode, is_deferred, materialize_module
from torchfake._replay.task_graph import FusedGroup, SingleOp
from torchfake._replay.tiling import TileableOp


def test_operations_on_the_same_elements_are_fused() -> None:
    with deferred_mode():
        weight = torch.empty(50, 24).normal_().mul_(0.02)
        weight[0].fill_(0)  # a range of its elements
        half = weight.to(torch.bfloat16)
    (group,) = task_graph_of(half).tasks
    assert isinstance(group, FusedGroup)
    assert [str(tileable.op.func) for tileable in group.tileables] == [
        "aten.normal_.default", "aten.mul_.Tensor", "aten.fill_.Scalar", "aten._to_copy.default",
    ]  # fmt: skip


def test_an_operation_on_a_column_is_not_fused() -> None:
    with deferred_mode():
        column = torch.empty(50, 24).normal_()
        column[:, 0].fill_(0)  # no range of its elements
    draw, fill = task_graph_of(column).tasks
    assert isinstance(draw, FusedGroup)
    assert isinstance(fill, SingleOp)
    assert fill.dependencies == {draw}


def test_draws_depend_on_an_uncounted_draw_before_them() -> None:
    """Until the mode is left, which does it for the sake of the generator."""
    with deferred_mode():
        first = torch.empty(1000).log_normal_()
        second = torch.empty(40).normal_()
        single, group = task_graph_of(first, second).tasks
        assert isinstance(single, SingleOp)
        assert group.dependencies == {single}
    assert not any(task.dependencies for task in task_graph_of(first, second).tasks)


def test_no_task_depends_on_itself() -> None:
    """Groups that grow while other tasks come to depend on them."""
    with deferred_mode():
        a, b = torch.empty(64).normal_(), torch.empty(64).uniform_()
        c = a[:10].cumsum(0)  # cannot be tiled: a's group must not grow any more
        a.add_(1)
        b.add_(a)
        b[:10].copy_(c)
        a.mul_(b)
    tasks = task_graph_of(a, b).tasks
    done: set[Any] = set()
    while len(done) < len(tasks):
        ready = [t for t in tasks if t not in done and t.dependencies <= done]
        assert ready
        done.update(ready)


def test_nothing_is_delivered_before_its_last_operation() -> None:
    """A group that begins before a single operation, and goes on after it."""

    def build() -> nn.Module:
        module = nn.Module()
        module.register_buffer("mask", torch.ones(16, 16).mul_(0.5))
        module.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(16, 16)))
        with torch.no_grad():
            module.weight.mul_(module.mask)
        return module

    module = deferred_init(build)
    task_graph = task_graph_of(*module.state_dict().values())
    cell = module.weight._fake_storage.deferred.contents.cell  # type: ignore[union-attr]
    assert isinstance(task_graph.first_tasks[cell], SingleOp)
    assert isinstance(task_graph.last_tasks[cell], FusedGroup)

    def interrupt(tileable: TileableOp, *_: int) -> None:
        is_product = str(tileable.op.func) == "aten.mul_.Tensor" and len(tileable.views) == 2
        if is_product and tileable.op.reads():
            raise KeyboardInterrupt

    with tiny_tiles(), before_each_tile(interrupt), pytest.raises(KeyboardInterrupt):
        materialize_module(module, threads=1)
    assert is_deferred(module.weight)  # type: ignore[arg-type]
