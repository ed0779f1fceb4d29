"""Parts of what was recorded, made without the rest: the bits of eager's parts, for less work."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_same, bits
from programs import ACTIONS, Step, run
from torch import nn

import profiles as profiles  # how many examples are drawn
from tiny_pieces import tiny_pieces
from torchfake import (
    _chains,
    _narrow,
    _pieces,
    _wanted,
    deferred_init,
    deferred_mode,
    materialize_module,
)
from torchfake._graph import history

Tensor = torch.Tensor


def part(tensor: Tensor, draw: random.Random) -> Tensor:
    """A copy of some of it, as shards are: cut along any dimension, padded or not, cut again."""
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
            made = run(program)
    modules = []
    for tensors in (eager.tensors, made.tensors):
        draw = random.Random(seed)
        module = nn.Module()
        for i, tensor in enumerate(tensors):
            if not tensor.is_inference():
                module.register_buffer(f"b{i}", part(tensor, draw))
        modules.append(module)
    with tiny_pieces():
        assert_same(modules[0], materialize_module(modules[1]))


def truncated() -> Tensor:
    return nn.init.trunc_normal_(torch.empty(60, 50))


def computed() -> Tensor:
    return (torch.empty(60, 50).uniform_(-1, 1) * 3 + torch.randn(60, 50)).to(torch.bfloat16)


def with_row_of_zeros() -> Tensor:
    weight = torch.empty(60, 50).normal_()
    weight[7].fill_(0)
    return weight


def in_parts() -> Tensor:
    weight = torch.empty(60, 50)
    for i in range(3):
        nn.init.normal_(weight[20 * i : 20 * (i + 1)], std=0.1 * (i + 1))
    return weight


def copied() -> Tensor:
    return torch.empty(50, 60).normal_().t().contiguous().mul_(2)


def of_norm_one() -> Tensor:
    weight = torch.empty(60, 50).uniform_()
    return weight / weight.norm(dim=1, keepdim=True)


KINDS = [
    lambda: torch.empty(60, 50).normal_(0, 0.02),
    lambda: torch.empty(3001, dtype=torch.float64).normal_(),
    lambda: torch.empty(61, 49, dtype=torch.float16).uniform_(-1, 1),
    lambda: torch.zeros(60, 50),
    lambda: torch.arange(3000.0).view(60, 50),
    lambda: nn.init.orthogonal_(torch.empty(60, 50)),
    truncated, computed, with_row_of_zeros, in_parts, copied, of_norm_one,
]  # fmt: skip


@pytest.mark.parametrize("build", KINDS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8, 70])
def test_chunks_are_the_whole(build: Callable[[], Tensor], num_ranks: int) -> None:
    """Along each dimension, as ranks of a mesh make them."""
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
            with tiny_pieces():
                materialize_module(module)
            if rank < len(chunks):
                assert bits(module.shard) == bits(eager.chunk(num_ranks, dim)[rank])


def work_of(module: Any) -> tuple[int, int]:
    """Elements that steps are done on to make `module`, and elements of the largest cell."""
    tensors = [*module.parameters(), *module.buffers()]
    contents = [tensor._fake_storage.recorded.contents for tensor in tensors]
    ops = history(c.op for c in contents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_wanted, "MIN_BYTES", -1)
        ops = _narrow.narrowed(ops, [c.cell for c in contents])
    steps = [step for op in ops if (step := _pieces.step_of(op)) is not None]
    cells = [made.cell for op in ops for made in op.made] + [c for op in ops for c in op.written]
    return (
        sum(step.stop - step.start for step in steps),
        max(cell.num_bytes for cell in cells) // 4,
    )


@pytest.mark.parametrize("rank", range(8))
def test_work_and_memory_follow_the_share(rank: int) -> None:
    """Of a stack of steps on 4,096 elements, an eighth is done; and no more memory is there."""

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


def test_what_is_wanted_whole_is_not_cut() -> None:
    def build() -> nn.Module:
        weight = nn.Parameter(torch.empty(64, 64).normal_())
        return nn.ParameterList([weight, weight.detach()[:8].clone()])

    with tiny_pieces():
        torch.manual_seed(0)
        eager = build()
        torch.manual_seed(0)
        assert_same(eager, materialize_module(deferred_init(build)))


def test_draws_of_a_part_begin_further_on() -> None:
    """And no word in between is drawn, but for a few."""
    drawn: list[int] = []
    original = _chains.Section._do

    def do(self: Any, step: Any, start: int, stop: int) -> None:
        drawn.append(stop - start)
        original(self, step, start, stop)

    with deferred_mode():
        weight = torch.empty(1 << 20).normal_()
        module = nn.Module()
        module.shard = weight[-1000:].clone()
    with tiny_pieces(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chains.Section, "_do", do)
        materialize_module(module)
    assert sum(drawn) <= 1200
