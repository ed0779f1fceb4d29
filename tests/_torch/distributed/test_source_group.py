"""A process group in which one rank has values: here of one rank. tests/_materialize has others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake._torch.distributed import source_group


@pytest.fixture
def gloo(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_messages_and_bytes(gloo: None) -> None:
    group = source_group.SourceGroup(dist.group.WORLD, 0)
    assert (group.is_source, group.ranks, group.device) == (True, [0], torch.device("cpu"))
    assert group.gather("a") == group.gather_to_source("a") == {0: "a"}
    assert group.from_source([1]) == [1]
    data = torch.arange(3, dtype=torch.uint8)
    group.broadcast(data)
    assert data.tolist() == [0, 1, 2]


def test_without_other_ranks_nothing_is_sent(gloo: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    for given in (None, dist.group.WORLD, mesh, init_device_mesh("cpu", (1, 1))):
        assert source_group.source_group(given, 0) is None
    with pytest.raises(ValueError, match=r"from_rank is 1, and the ranks that take part are \[0\]"):
        source_group.source_group(None, 1)
    wrong: Any = "dp"
    with pytest.raises(TypeError, match="group is a str: give a process group or a mesh"):
        source_group.source_group(wrong, 0)


def test_without_a_process_group() -> None:
    assert source_group.source_group(None, 0) is None
    with pytest.raises(ValueError, match="from_rank is 1"):
        source_group.source_group(None, 1)


def test_simulated_ranks() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    try:
        assert source_group.source_group(None, 0) is None
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        assert source_group.source_group(grid, 0) is None
        assert source_group.source_group(grid["b"], 2) is None
        with pytest.raises(ValueError, match=r"ranks that take part are \[2, 3\]"):
            source_group.source_group(grid["b"], 0)
        cube = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("a", "b", "c"))
        with pytest.raises(ValueError, match="which has no process group of its own"):
            source_group.source_group(cube["a", "c"], 2)
    finally:
        dist.destroy_process_group()
