"""Which elements a rank has: compared with tensors that are split, and put together again."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests._sharding import models
from torchfake import deferred_init, errors, materialize_module
from torchfake._sharding.local_slices import LocalSlices, _ranges, local_slices_of
from torchfake._torch.distributed import dtensors
from torchfake._torch.distributed.dtensors import AxisSplit


@contextmanager
def simulated_rank(world: int, rank: int) -> Iterator[None]:
    """Context: this process is one of several ranks; collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def chunk(indices: torch.Tensor, num: int, place: int) -> torch.Tensor:
    """As FSDP and DTensor split: the last chunks may be smaller, or empty."""
    chunks = indices.chunk(num)
    return chunks[place] if place < len(chunks) else indices[:0]


def indices_of(ranges: Any) -> list[int]:
    return [index for start, stop in ranges for index in range(start, stop)]


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_fsdp_after_tensor_parallelism(tp: int) -> None:
    """FSDP2 splits the shard that it finds, whatever its size."""
    for size, dp in itertools.product(range(40), (1, 2, 3, 4, 5)):
        for i, j in itertools.product(range(dp), range(tp)):
            expected = chunk(chunk(torch.arange(size), tp, j), dp, i)
            cuts = [AxisSplit(0, dp, i, tp), AxisSplit(0, tp, j, 1)]
            found = _ranges(size, len(expected), cuts)
            assert found is not None
            assert indices_of(found) == expected.tolist(), (size, dp, tp, i, j)


def test_two_axes_in_order() -> None:
    for size, one, two in itertools.product(range(30), (1, 2, 3), (1, 2, 4)):
        for i, j in itertools.product(range(one), range(two)):
            expected = chunk(chunk(torch.arange(size), one, i), two, j)
            found = _ranges(size, len(expected), [AxisSplit(0, one, i, 1), AxisSplit(0, two, j, 1)])
            assert indices_of(found) == expected.tolist()


def test_a_split_factor_without_its_other_axis() -> None:
    """As DTensor reads it: a part of each block, so that there are several ranges."""
    for size, factor, num in itertools.product((12, 13, 17), (2, 3), (2, 4)):
        for place in range(num):
            blocks = torch.arange(size).chunk(factor)
            expected = torch.cat([chunk(block, num, place) for block in blocks])
            found = _ranges(size, len(expected), [AxisSplit(0, num, place, factor)])
            assert indices_of(found) == expected.tolist()


def test_bytes_and_chunks_of_any_slices() -> None:
    """All three ways to describe slices give the same elements, for random ones of up to four
    dimensions.
    """
    rng = random.Random(0)
    for _ in range(400):
        shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(0, 4)))
        ranges = tuple(random_ranges(rng, size) for size in shape)
        slices = LocalSlices(shape, ranges)
        full = torch.arange(torch.Size(shape).numel()).reshape(shape)
        local = slices.slice_of(full)
        selected = full
        for dim, each in enumerate(ranges):
            selected = selected.index_select(dim, torch.tensor(indices_of(each), dtype=torch.long))
        assert torch.equal(local, selected)
        assert slices.shape == local.shape
        assert torch.equal(from_chunks(slices, full), local)
        start = rng.randint(0, local.numel())
        stop = rng.randint(start, local.numel())
        size = 8
        found = [
            offset // size + i
            for offset, num_bytes in slices.byte_runs(start * size, stop * size, size)
            for i in range(num_bytes // size)
        ]
        assert found == local.flatten()[start:stop].tolist()


def random_ranges(rng: random.Random, size: int) -> tuple[tuple[int, int], ...]:
    """The whole dimension, none of it, one range, or several with gaps between them."""
    bounds = sorted(rng.sample(range(size + 1), min(size + 1, rng.choice([0, 2, 2, 4]))))
    if not bounds:
        return ((0, size),)
    return tuple(zip(bounds[::2], bounds[1::2], strict=False))


def from_chunks(slices: LocalSlices, full: torch.Tensor) -> torch.Tensor:
    local = torch.full(slices.shape, -1)
    for chunk in slices.chunks():
        there = tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))
        here = tuple(slice(o, o + s) for o, s in zip(chunk.local_offsets, chunk.sizes, strict=True))
        local[here] = full[there]
    return local


def both(module: Any, mesh: Any) -> Any:
    models.tensor_parallel(module, mesh["tp"])
    return models.fsdp(module, mesh["dp"])


def small() -> models.Net:
    """9 words over 2 and 4 ranks: DTensor reads the placements otherwise than FSDP2 splits."""
    return models.Net(width=8, inner=18, layers=1, words=9)


def test_uneven_on_two_axes() -> None:
    """A checkpoint of full tensors, loaded into the shards that FSDP2 makes of a real module."""
    torch.manual_seed(5)
    state = {key: tensor.clone() for key, tensor in small().state_dict().items()}
    with simulated_rank(8, 7):  # by DTensor's reading it has no word
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
        module = materialize_module(both(deferred_init(small), mesh), checkpoint=state)
        shards = {key: dtensors.local_tensor_of(t) for key, t in module.state_dict().items()}
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


def test_slices_that_cannot_be_determined() -> None:
    with simulated_rank(4, 1):
        mesh = init_device_mesh("cpu", (4,))
        pending = DTensor.from_local(torch.ones(3), mesh, [Partial()])
        with pytest.raises(errors.CheckpointError, match=r"^w is a DTensor with a pending sum"):
            local_slices_of("w", pending)
        other = DTensor.from_local(torch.ones(3, 2), mesh, [Shard(0)], shape=(7, 2), stride=(2, 1))
        message = r"^w has the global shape \[7, 2\] and the local shape \[3, 2\]"
        with pytest.raises(errors.CheckpointError, match=message):
            local_slices_of("w", other)
        replicated = DTensor.from_local(torch.ones(3), mesh, [Replicate()])
        assert local_slices_of("w", replicated).is_whole
        assert not dtensors.is_first_replica(replicated)
