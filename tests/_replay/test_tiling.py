"""Operations computed tile by tile have the bits of eager mode, or are executed whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests import hypothesis_profiles as hypothesis_profiles  # how many examples are drawn
from tests._replay.conftest import Model, eager_and_materialized, task_graph_of
from tests.oracle import assert_same, bits
from tests.tiny_tiles import tiny_tiles
from torchfake import deferred_mode
from torchfake._replay import tile_kernels, tiling
from torchfake._replay.task_graph import FusedGroup, SingleOp

ARITHMETIC = [
    name
    for name, build in tile_kernels._BUILDERS.items()
    if build in (tile_kernels._in_place, tile_kernels._out_of_place)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    tile_elements=st.sampled_from([16, 32, 48, 160]),
    num_threads=st.integers(1, 4),
    kind=st.sampled_from(["normal", "uniform", "both"]),
)
def test_draws_of_any_size(
    sizes: list[int], tile_elements: int, num_threads: int, kind: str, dtype: torch.dtype
) -> None:
    def build() -> nn.Module:
        module = nn.Module()
        for i, size in enumerate(sizes):
            values = torch.empty(size, dtype=dtype)
            if kind == "uniform":
                values.uniform_(-1, 2)
            else:
                values.normal_(0.5, 2)
            if kind == "both":
                values = values + torch.rand(size, dtype=dtype)
            module.register_buffer(f"t{i}", values)
        return module

    with tiny_tiles(tile_elements):
        eager, materialized = eager_and_materialized(build, threads=num_threads)
    assert_same(eager, materialized)


@pytest.mark.parametrize("func", ARITHMETIC)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_arithmetic(func: str, dtype: torch.dtype) -> None:
    """Each operator of the table, split anywhere."""
    _, packet, overload = func.split(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    second = [a for a in op._schema.arguments[1:] if a.name in ("other", "min", "max")][:1]

    def build() -> nn.Module:
        values = torch.rand(1003, dtype=dtype) * 0.9
        result = op(values, *(0.3 for _ in second))
        module = nn.Module()
        module.register_buffer("values", result)
        return module

    with tiny_tiles():
        eager, materialized = eager_and_materialized(build)
    assert bits(materialized.values) == bits(eager.values)  # type: ignore[arg-type]


# On a torch whose tiles had other bits.


def test_draws_that_cannot_be_tiled_are_executed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "tiled_draws_match", lambda *_: False)
    with deferred_mode():
        drawn = torch.empty(1000).normal_()
    assert [type(task) for task in task_graph_of(drawn).tasks] == [SingleOp]
    with tiny_tiles():
        eager, materialized = eager_and_materialized(Model)
    assert_same(eager, materialized)


def test_arithmetic_that_cannot_be_tiled_is_executed_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tile_kernels, "tiled_arithmetic_matches", lambda *_: False)
    with deferred_mode():
        scaled = torch.empty(1000).normal_().mul_(0.5)
    assert [type(task) for task in task_graph_of(scaled).tasks] == [FusedGroup, SingleOp]
