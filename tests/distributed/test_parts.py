"""Which elements a rank has: against tensors that are really cut, and really put together."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import models
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake import _private_distributed as _distributed
from torchfake import deferred_init, errors, materialize_module
from torchfake._parts import Part, _stretches, part_of
from torchfake._private_distributed import Cut


@contextmanager
def one_of(world: int, rank: int) -> Iterator[None]:
    """Context: this process is one of so many ranks, and nobody answers."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def chunk(indices: torch.Tensor, num: int, place: int) -> torch.Tensor:
    """As FSDP and DTensor cut: what comes last may be less, or nothing."""
    pieces = indices.chunk(num)
    return pieces[place] if place < len(pieces) else indices[:0]


def indices_of(stretches: Any) -> list[int]:
    return [index for first, last in stretches for index in range(first, last)]


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_fsdp_after_tensor_parallelism(tp: int) -> None:
    """FSDP2 cuts the shard that it finds, whatever its size."""
    for size, dp in itertools.product(range(40), (1, 2, 3, 4, 5)):
        for i, j in itertools.product(range(dp), range(tp)):
            expected = chunk(chunk(torch.arange(size), tp, j), dp, i)
            cuts = [Cut(0, dp, i, tp), Cut(0, tp, j, 1)]
            found = _stretches(size, len(expected), cuts)
            assert found is not None
            assert indices_of(found) == expected.tolist(), (size, dp, tp, i, j)


def test_cut_in_order() -> None:
    for size, one, two in itertools.product(range(30), (1, 2, 3), (1, 2, 4)):
        for i, j in itertools.product(range(one), range(two)):
            expected = chunk(chunk(torch.arange(size), one, i), two, j)
            found = _stretches(size, len(expected), [Cut(0, one, i, 1), Cut(0, two, j, 1)])
            assert indices_of(found) == expected.tolist()


def test_a_factor_without_what_it_is_a_factor_of() -> None:
    """As DTensor reads it: a part of each piece. The part has gaps."""
    for size, factor, num in itertools.product((12, 13, 17), (2, 3), (2, 4)):
        for place in range(num):
            pieces = torch.arange(size).chunk(factor)
            expected = torch.cat([chunk(piece, num, place) for piece in pieces])
            found = _stretches(size, len(expected), [Cut(0, num, place, factor)])
            assert indices_of(found) == expected.tolist()


def test_bytes_and_boxes_of_any_part() -> None:
    """All three ways to describe a part say the same, for random ones of up to four dimensions."""
    rng = random.Random(0)
    for _ in range(400):
        shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(0, 4)))
        stretches = tuple(random_stretches(rng, size) for size in shape)
        part = Part(shape, stretches)
        whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
        own = part.of(whole)
        picked = whole
        for dim, each in enumerate(stretches):
            picked = picked.index_select(dim, torch.tensor(indices_of(each), dtype=torch.long))
        assert torch.equal(own, picked)
        assert part.shape == own.shape
        assert torch.equal(from_boxes(part, whole), own)
        first = rng.randint(0, own.numel())
        last = rng.randint(first, own.numel())
        size = 8
        found = [
            place // size + i
            for place, num_bytes in part.runs(first * size, last * size, size)
            for i in range(num_bytes // size)
        ]
        assert found == own.flatten()[first:last].tolist()


def random_stretches(rng: random.Random, size: int) -> tuple[tuple[int, int], ...]:
    """All, none, one, or some with gaps in between."""
    cuts = sorted(rng.sample(range(size + 1), min(size + 1, rng.choice([0, 2, 2, 4]))))
    if not cuts:
        return ((0, size),)
    return tuple(zip(cuts[::2], cuts[1::2], strict=False))


def from_boxes(part: Part, whole: torch.Tensor) -> torch.Tensor:
    own = torch.full(part.shape, -1)
    for box in part.boxes():
        there = tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))
        here = tuple(slice(o, o + s) for o, s in zip(box.own_offsets, box.sizes, strict=True))
        own[here] = whole[there]
    return own


def both(module: Any, mesh: Any) -> Any:
    models.tensor_parallel(module, mesh["tp"])
    return models.fsdp(module, mesh["dp"])


def small() -> models.Net:
    """Where DTensor's reading of placements and FSDP2's cuts disagree: 9 words, over 2, over 4."""
    return models.Net(width=8, inner=18, layers=1, words=9)


def test_uneven_on_two_axes() -> None:
    """A checkpoint of the whole, into the shards that FSDP2 makes of a real module."""
    torch.manual_seed(5)
    state = {key: tensor.clone() for key, tensor in small().state_dict().items()}
    with one_of(8, 7):  # DTensor says that this one has no word
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
        module = materialize_module(both(deferred_init(small), mesh), checkpoint=state)
        shards = {key: _distributed.held_by(t) for key, t in module.state_dict().items()}
    columns = state["layers.0.down.weight"].chunk(2, 1)[1]
    expected = {
        "embed.weight": chunk(chunk(state["embed.weight"], 2, 1), 4, 3),
        "head.weight": chunk(chunk(state["head.weight"], 2, 1), 4, 3),
        "layers.0.up.bias": chunk(chunk(state["layers.0.up.bias"], 2, 1), 4, 3),
        "layers.0.down.weight": chunk(columns, 4, 3),
        "layers.0.norm.weight": chunk(state["layers.0.norm.weight"], 4, 3),
        "scale": state["scale"],
    }
    assert len(expected["embed.weight"]) == 1
    for key, values in expected.items():
        assert torch.equal(shards[key], values), key


def test_what_cannot_be_told() -> None:
    with one_of(4, 1):
        mesh = init_device_mesh("cpu", (4,))
        added = DTensor.from_local(torch.ones(3), mesh, [Partial()])
        with pytest.raises(errors.CheckpointError, match=r"^w is a sum over the ranks"):
            part_of("w", added)
        other = DTensor.from_local(torch.ones(3, 2), mesh, [Shard(0)], shape=(7, 2), stride=(2, 1))
        with pytest.raises(errors.CheckpointError, match=r"^w, \[7, 2\] as a whole, is \[3, 2\]"):
            part_of("w", other)
        same = DTensor.from_local(torch.ones(3), mesh, [Replicate()])
        assert part_of("w", same).is_whole
        assert not _distributed.is_first_copy(same)
