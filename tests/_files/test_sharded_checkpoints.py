"""Sharded modules, saved and loaded: the files of the unsharded module, the bits of eager."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests._files import worker_checkpoints as worker
from tests.ranks import Launch, finished, once_per_session, run_launches
from torchfake import deferred_init, errors, materialize_module, save_materialized
from torchfake._files.disk import INCOMPLETE


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    """As many as the ranks have: the bits of an orthogonal matrix depend on it."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


WORKER = "tests._files.worker_checkpoints"


def launches(folder: Path) -> list[Launch]:
    """Four ranks save and load, two load, and one of three dies in a save."""
    return [
        Launch(WORKER, 4, ("save+load", str(folder / "saved"))),
        Launch(WORKER, 2, ("load", str(folder / "saved"))),
        Launch(WORKER, 3, ("kill", str(folder / "killed"), "1"), independent=True),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all launches have left."""

    def make(folder: Path) -> None:
        (folder / "saved").mkdir(parents=True)
        run_launches(launches(folder), folder)

    return once_per_session(tmp_path_factory, "checkpoints", make)


@pytest.fixture
def saved(folder: Path) -> Path:
    """What four ranks have written and read again."""
    lines = finished(folder, 0).printed()
    assert sum(line.startswith("loaded ") for line in lines) == len(worker.ways(4))
    assert lines[-1] == "bytes_read"
    return folder / "saved"


def unsharded(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    module: nn.Module = deferred_init(worker.ways(4)[name][0])
    return module


@pytest.mark.parametrize("name", worker.ways(4))
def test_the_files_of_the_unsharded_module(name: str, saved: Path, tmp_path: Path) -> None:
    """Byte for byte, with the digest of the record; of a real module, all but the digest."""
    save_materialized(unsharded(name), tmp_path, max_shard_size=worker.FILE_BYTES)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    recorded, real = (
        {path.name: path.read_bytes() for path in (saved / f"{name}.{kind}").iterdir()}
        for kind in ("deferred", "real")
    )
    assert recorded == whole
    assert {k: without_digest(v) for k, v in real.items()} == {
        k: without_digest(v) for k, v in whole.items()
    }


def without_digest(content: bytes) -> Any:
    size = int.from_bytes(content[:8], "little")
    if content.startswith(b"{"):
        return content
    header = json.loads(content[8 : 8 + size])
    assert len(header["__metadata__"].pop("torchfake_record")) == 64
    return list(header.items()), content[8 + size :]


@pytest.mark.parametrize("name", worker.ways(4))
@pytest.mark.parametrize("kind", ["deferred", "dcp"])
def test_into_an_unsharded_module(name: str, kind: str, saved: Path) -> None:
    """Without a process group."""
    module = materialize_module(unsharded(name, 1), checkpoint=saved / f"{name}.{kind}")
    worker.assert_is(module, worker.eager(name).state_dict(), name)


@pytest.mark.usefixtures("saved")
def test_on_two_ranks(folder: Path) -> None:
    lines = finished(folder, 1).printed()
    assert sum(line.startswith("loaded ") for line in lines) == len(worker.ways(2))
    assert lines[-1] == "bytes_read"


def test_a_rank_that_dies(folder: Path, tmp_path: Path) -> None:
    """Only complete files have their names; another call continues."""
    done = finished(folder, 2)
    assert [bool(lines) for lines in done.lines] == [True, False, True], done.errors
    shutil.copytree(folder / "killed", tmp_path, dirs_exist_ok=True)
    assert not list(tmp_path.glob("*.index.json"))
    whole = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    assert whole
    assert not list(tmp_path.glob(f"*{INCOMPLETE}"))
    with pytest.raises(errors.CheckpointError, match="left over from a save that was interrupt"):
        materialize_module(unsharded("fsdp"), checkpoint=tmp_path)
    save_materialized(unsharded("fsdp"), tmp_path, max_shard_size=worker.FILE_BYTES)
    assert {path: path.stat().st_mtime_ns for path in whole} == whole
    module = materialize_module(unsharded("fsdp", 1), checkpoint=tmp_path)
    worker.assert_is(module, worker.eager("fsdp").state_dict(), "continued")


def test_simulated_ranks_are_refused(tmp_path: Path) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        module = deferred_init(nn.Linear, 5, 7)
        fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        with pytest.raises(errors.CheckpointError, match="the process group is fake"):
            save_materialized(module, tmp_path / "x")
    finally:
        dist.destroy_process_group()
    assert not (tmp_path / "x").exists()
