"""Sharded modules to files and from files: the files of the unsharded module, the bits of eager."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import worker_checkpoints as worker
from launch import on_their_own, printed
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchfake import (
    deferred_init,
    errors,
    is_deferred,
    materialize_module,
    save_materialized,
)
from torchfake._safetensors import INCOMPLETE


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    """As the ranks have: an orthogonal matrix depends on how many."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks have written, and read again."""
    folder = tmp_path_factory.mktemp("saved")
    lines = printed("worker_checkpoints.py", 4, "save+load", str(folder))
    assert sum(line.startswith("loaded ") for line in lines) == len(worker.ways(4))
    assert lines[-1] == "bytes_read"
    return folder


def unsharded(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    module: nn.Module = deferred_init(worker.ways(4)[name][0])
    return module


@pytest.mark.parametrize("name", worker.ways(4))
def test_the_files_of_the_unsharded_module(name: str, saved: Path, tmp_path: Path) -> None:
    """Byte for byte, the digest of the record included; of a real module all but that."""
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
def test_on_two_ranks(saved: Path) -> None:
    lines = printed("worker_checkpoints.py", 2, "load", str(saved))
    assert sum(line.startswith("loaded ") for line in lines) == len(worker.ways(2))
    assert lines[-1] == "bytes_read"


def test_a_rank_that_dies(tmp_path: Path) -> None:
    """No file that is not whole has its name; another call goes on from there."""
    lines = on_their_own("worker_checkpoints.py", 3, "kill", str(tmp_path), "1")
    assert [bool(each) for each in lines] == [True, False, True]
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


# Directories of torch.distributed.checkpoint, in one process.


def save_alone(state: dict[str, Any], folder: Path) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3).to(torch.bfloat16))


def deferred_net() -> nn.Sequential:
    return deferred_init(net, 1)


def same(module: nn.Module, expected: nn.Module) -> bool:
    state = expected.state_dict()
    return all(torch.equal(t, state[key]) for key, t in module.state_dict().items())


class Application:
    """What many training scripts save."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "step": 3, "seen": torch.ones(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_names_are_nested_in(tmp_path: Path) -> None:
    eager = net(0)
    states: list[dict[str, Any]] = [
        dict(eager.state_dict()),
        {"model": eager.state_dict(), "optimizer": {"0.weight": {"exp_avg": torch.ones(2)}}},
        {"app": Application(eager)},
        {"state": [eager.state_dict(), {"lr": 1.0}]},
    ]
    for number, state in enumerate(states):
        save_alone(state, tmp_path / str(number))
        module = materialize_module(deferred_net(), checkpoint=tmp_path / str(number))
        assert same(module, eager), number
    save_alone({"model": eager.state_dict(), "ema": eager.state_dict()}, tmp_path / "two")
    with pytest.raises(errors.CheckpointError, match=r"as many names of the module in .* and "):
        materialize_module(deferred_net(), checkpoint=tmp_path / "two")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_parts_of_a_module(tmp_path: Path) -> None:
    save_alone(dict(net(0).state_dict()), tmp_path)
    module = deferred_net()
    materialize_module(module, buffers_only=True, checkpoint=tmp_path)
    materialize_module(module[2], check_fn=lambda _: True)
    materialize_module(module, checkpoint=str(tmp_path))
    assert same(module, net(0))


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made",)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_damaged_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, module = tmp_path / "x", deferred_net()
    save_alone(dict(net(0).state_dict()), folder)
    content = (folder / ".metadata").read_bytes()

    def message(metadata: bytes) -> str:
        (folder / ".metadata").write_bytes(metadata)
        with pytest.raises(errors.CheckpointError) as raised:
            materialize_module(module, checkpoint=folder)
        assert all(map(is_deferred, module.parameters()))
        return str(raised.value)

    assert "would run code: posix.mkdir has no business there" in message(pickle.dumps(Evil()))
    assert not (tmp_path / "made").exists()
    assert "cannot be read, for it is damaged" in message(content[:-20])
    assert "cannot be read, for it is damaged" in message(b"")
    assert "cannot be read, for it is damaged" in message(pickle.dumps({"a": 1}))
    assert "0.weight cannot be read: it has 0 of the 35" in message(without_chunks(content))
    (data,) = folder.glob("*.distcp")
    data.write_bytes(data.read_bytes()[:500])
    assert re.search(r"^\S+ cannot be read: .*Nothing was changed$", message(content), re.DOTALL)
    data.unlink()
    assert "No such file" in message(content)
    assert same(materialize_module(module), net(1))


def without_chunks(content: bytes) -> bytes:
    metadata: Metadata = pickle.loads(content)
    saved = metadata.state_dict_metadata["0.weight"]
    assert isinstance(saved, TensorStorageMetadata)
    saved.chunks.clear()
    return pickle.dumps(metadata)


def test_other_ranks_that_are_imagined(tmp_path: Path) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        module = deferred_net()
        fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        with pytest.raises(errors.CheckpointError, match="the process group is fake"):
            save_materialized(module, tmp_path / "x")
    finally:
        dist.destroy_process_group()
    assert not (tmp_path / "x").exists()
