"""Parts of deferred tensors, computed without the rest: the bits of eager mode, for less work."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests import hypothesis_profiles as hypothesis_profiles  # how many examples are drawn
from tests._replay.conftest import before_each_tile, eager_and_materialized
from tests._replay.programs import ACTIONS, Step, run
from tests.oracle import assert_same, bits
from tests.tiny_tiles import tiny_tiles
from torchfake import deferred_init, deferred_mode, materialize_module
from torchfake._graph.operations import dependencies
from torchfake._replay import demand_analysis, slicing, tiling
from torchfake._replay.tiling import TileableOp

Tensor = torch.Tensor


def random_part(tensor: Tensor, draw: random.Random) -> Tensor:
    """A copy of a part, as shards are: split along any dimension, padded or not, split again."""
    for _ in range(draw.randint(1, 3)):
        view = tensor.detach()
        if draw.random() < 0.2 and view.dim() > 1:
            view = view.transpose(0, 1)
        for dim, length in enumerate(view.shape):
            if draw.random() < 0.7:
                start = draw.randint(0, length)
                view = view.narrow(dim, start, draw.randint(0, length - start))
        how = draw.randrange(4)
        if how == 0:
            tensor = view.clone()
        elif how == 1:
            tensor = view.contiguous().to(torch.float64).clone()
        elif how == 2:
            tensor = view.new_empty(view.shape).copy_(view)
        else:
            size = [length + draw.randrange(3) for length in view.shape]
            tensor = view.new_zeros(size)
            tensor[tuple(slice(0, length) for length in view.shape)].copy_(view)
    return tensor


steps = st.tuples(st.sampled_from(sorted(ACTIONS)), *[st.integers(0, 40)] * 3)


@given(program=st.lists(steps, min_size=1, max_size=25), seed=st.integers(0, 1 << 30))
def test_parts_of_programs(program: list[Step], seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        eager = run(program)
        torch.manual_seed(seed)
        with deferred_mode():
            deferred = run(program)
    modules = []
    for tensors in (eager.tensors, deferred.tensors):
        draw = random.Random(seed)
        module = nn.Module()
        for i, tensor in enumerate(tensors):
            if not tensor.is_inference():
                module.register_buffer(f"b{i}", random_part(tensor, draw))
        modules.append(module)
    with tiny_tiles():
        assert_same(modules[0], materialize_module(modules[1]))


def truncated_normal() -> Tensor:
    return nn.init.trunc_normal_(torch.empty(60, 50))


def sum_of_draws() -> Tensor:
    return (torch.empty(60, 50).uniform_(-1, 1) * 3 + torch.randn(60, 50)).to(torch.bfloat16)


def draw_with_row_of_zeros() -> Tensor:
    weight = torch.empty(60, 50).normal_()
    weight[7].fill_(0)
    return weight


def drawn_in_thirds() -> Tensor:
    weight = torch.empty(60, 50)
    for i in range(3):
        nn.init.normal_(weight[20 * i : 20 * (i + 1)], std=0.1 * (i + 1))
    return weight


def transposed_copy() -> Tensor:
    return torch.empty(50, 60).normal_().t().contiguous().mul_(2)


def rows_of_norm_one() -> Tensor:
    weight = torch.empty(60, 50).uniform_()
    return weight / weight.norm(dim=1, keepdim=True)


INITIALIZATIONS = [
    lambda: torch.empty(60, 50).normal_(0, 0.02),
    lambda: torch.empty(3001, dtype=torch.float64).normal_(),
    lambda: torch.empty(61, 49, dtype=torch.float16).uniform_(-1, 1),
    lambda: torch.zeros(60, 50),
    lambda: torch.arange(3000.0).view(60, 50),
    lambda: nn.init.orthogonal_(torch.empty(60, 50)),
    truncated_normal, sum_of_draws, draw_with_row_of_zeros, drawn_in_thirds, transposed_copy,
    rows_of_norm_one,
]  # fmt: skip


@pytest.mark.parametrize("build", INITIALIZATIONS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8, 70])
def test_chunks_have_the_bits_of_the_whole(build: Callable[[], Tensor], num_ranks: int) -> None:
    """Along each dimension, as ranks of a mesh compute them."""
    torch.manual_seed(0)
    eager = build()
    for dim in range(eager.dim()):
        for rank in range(num_ranks):
            torch.manual_seed(0)
            with deferred_mode():
                chunks = build().chunk(num_ranks, dim)
                module = nn.Module()
                if rank < len(chunks):
                    module.shard = chunks[rank].clone()
            with tiny_tiles():
                materialize_module(module)
            if rank < len(chunks):
                assert bits(module.shard) == bits(eager.chunk(num_ranks, dim)[rank])


def work_of(module: Any) -> tuple[int, int]:
    """Elements that tileable operations compute for `module`, and elements of the largest cell."""
    tensors = [*module.parameters(), *module.buffers()]
    contents = [tensor._fake_storage.deferred.contents for tensor in tensors]
    ops = dependencies(c.op for c in contents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demand_analysis, "MIN_SLICED_BYTES", -1)
        ops = slicing.slice_to_demand(ops, [c.cell for c in contents])
    tileables = [t for op in ops if (t := tiling.as_tileable(op)) is not None]
    cells = [cell for op in ops for cell in op.modified_cells()]
    return (
        sum(tileable.stop - tileable.start for tileable in tileables),
        max(cell.num_bytes for cell in cells) // 4,
    )


@pytest.mark.parametrize("rank", range(8))
def test_work_and_memory_are_those_of_the_part(rank: int) -> None:
    """Of operations on 4,096 elements an eighth is computed, in an eighth of the memory."""

    def build() -> nn.Module:
        weight = torch.empty(64, 64).normal_(0, 0.02)
        return nn.ParameterList([weight.mul_(2).add_(1).chunk(8)[rank].clone()])

    module = deferred_init(build)
    assert work_of(module) == (4 * 512, 512)


def test_a_shard_of_a_shard() -> None:
    """Tensor parallel by columns of the matrix's transpose, and then FSDP of that."""

    def build() -> nn.Module:
        rows = torch.empty(64, 64).normal_().chunk(4)[1].clone()
        return nn.ParameterList([rows.chunk(4)[2].clone()])

    module = deferred_init(build)
    num_done, largest = work_of(module)
    assert num_done <= 3 * 64 * 4
    assert largest == 64 * 4


def test_a_tensor_that_is_requested_whole_is_not_sliced() -> None:
    def build() -> nn.Module:
        weight = nn.Parameter(torch.empty(64, 64).normal_())
        return nn.ParameterList([weight, weight.detach()[:8].clone()])

    with tiny_tiles():
        torch.manual_seed(0)
        eager = build()
        torch.manual_seed(0)
        assert_same(eager, materialize_module(deferred_init(build)))


def test_draws_of_a_part_begin_later_in_the_sequence() -> None:
    """The random words before them are skipped, but for a few."""
    drawn: list[int] = []

    def count(_: TileableOp, start: int, stop: int) -> None:
        drawn.append(stop - start)

    with deferred_mode():
        weight = torch.empty(1 << 20).normal_()
        module = nn.Module()
        module.shard = weight[-1000:].clone()
    with tiny_tiles(), before_each_tile(count):
        materialize_module(module)
    assert sum(drawn) <= 1200


class PartlyUsed(nn.Module):
    """A draw in the shape of another tensor, of which only a part is used."""

    def __init__(self, size: int) -> None:
        super().__init__()
        x = torch.empty(size)
        y = torch.randn_like(x)
        self.z = nn.Parameter(torch.zeros(size))
        with torch.no_grad():
            self.z[:64].copy_(y[:64])
        self.w = nn.Parameter(torch.randn(size))
        x[::2].zero_()
        x[1::2].zero_()
        self.register_buffer("x", x)


@pytest.mark.parametrize("size", [200, 400_000])
def test_a_draw_of_which_a_part_is_used(size: int) -> None:
    eager, materialized = eager_and_materialized(lambda: PartlyUsed(size))
    assert_same(eager, materialized)
    with tiny_tiles(tile_elements=32 if size < 1000 else 4096):
        eager, materialized = eager_and_materialized(lambda: PartlyUsed(size))
    assert_same(eager, materialized)
