"""Memory of a replay is bounded, and a bound that is too low is no dead end."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests import hypothesis_profiles as hypothesis_profiles  # how many examples are drawn
from tests._replay.conftest import before_each_tile, eager_and_materialized
from tests.oracle import assert_same
from tests.tiny_tiles import tiny_tiles
from torchfake._replay import execute, work_queue
from torchfake._replay.tiling import TileableOp


class CountedStorages(execute.Storages):
    """The storages of a replay; the most bytes that existed at a time."""

    peak_bytes = 0

    def __setitem__(self, cell: Any, storage: torch.UntypedStorage) -> None:
        super().__setitem__(cell, storage)
        num_bytes = sum(s.nbytes() for s in self.values())
        CountedStorages.peak_bytes = max(CountedStorages.peak_bytes, num_bytes)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[CountedStorages]:
    monkeypatch.setattr(work_queue, "Storages", CountedStorages)
    monkeypatch.setattr(CountedStorages, "peak_bytes", 0)
    return CountedStorages


def test_a_cast_model_never_exists_in_float32(counted: type[CountedStorages]) -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(10))).to(torch.bfloat16)

    with tiny_tiles():
        _, materialized = eager_and_materialized(build)
    assert counted.peak_bytes <= sum(p.numel() * 2 for p in materialized.parameters())


def test_of_cells_needed_whole_one_exists_at_a_time(counted: type[CountedStorages]) -> None:
    """Each orthogonal matrix is 16 KB of float32."""

    def build() -> nn.Module:
        layers = [nn.Parameter(nn.init.orthogonal_(torch.empty(64, 64))) for _ in range(6)]
        return nn.ParameterList(layers).to(torch.bfloat16)

    with tiny_tiles(num_scratch_bytes=20_000):
        eager, materialized = eager_and_materialized(build)
    assert_same(eager, materialized)
    assert counted.peak_bytes <= 6 * 64 * 64 * 2 + 64 * 64 * 4


def test_copies_of_a_layer_draw_it_once() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(40, 40)
        return nn.ModuleList(copy.deepcopy(layer) for _ in range(5))

    draws: list[str] = []

    def count_draws(tileable: TileableOp, *_: int) -> None:
        if tileable.draw is not None:
            draws.append(str(tileable.op))

    with tiny_tiles(tile_elements=100_000), before_each_tile(count_draws):
        eager, materialized = eager_and_materialized(build)
    assert_same(eager, materialized)
    assert len(draws) == 2


@given(
    num_bytes=st.sampled_from([0, 1_000, 10_000]),
    num_threads=st.integers(1, 4),
    tile_elements=st.sampled_from([16, 64, 500]),
    order=st.permutations(range(6)),
)
def test_a_replay_ends_however_little_memory_it_may_use(
    num_bytes: int, num_threads: int, tile_elements: int, order: list[int]
) -> None:
    """Single operations and groups that wait for each other and for memory."""

    def build() -> nn.Module:
        made = [nn.init.orthogonal_(torch.empty(20, 20)) for _ in range(3)]
        made += [torch.empty(20, 20).normal_() for _ in range(3)]
        for i in order:
            other = made[(i + 1) % 6]
            made[i] = made[i].mul(other).add_(other.t().contiguous()).to(torch.float64).float()
            made[i][:, 3] = made[i][:, 3].cumsum(0)
        return nn.ParameterList(made)

    with tiny_tiles(tile_elements, num_bytes):
        eager, materialized = eager_and_materialized(build, threads=num_threads)
    assert_same(eager, materialized)
