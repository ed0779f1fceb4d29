"""Directories of torch.distributed.checkpoint, read in one process."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from torchfake import deferred_init, errors, is_deferred, materialize_module


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
    """A stateful object, as many training scripts save it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "step": 3, "seen": torch.ones(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_names_are_found_in_nested_state_dicts(tmp_path: Path) -> None:
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
def test_some_tensors_of_a_module(tmp_path: Path) -> None:
    save_alone(dict(net(0).state_dict()), tmp_path)
    module = deferred_net()
    materialize_module(module, buffers_only=True, checkpoint=tmp_path)
    materialize_module(module[2], check_fn=lambda _: True)
    materialize_module(module, checkpoint=str(tmp_path))
    assert same(module, net(0))


class Hostile:
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

    assert "would run code: posix.mkdir does not belong in such metadata" in message(
        pickle.dumps(Hostile())
    )
    assert not (tmp_path / "made").exists()
    assert "cannot be read: it is damaged" in message(content[:-20])
    assert "cannot be read: it is damaged" in message(b"")
    assert "cannot be read: it is damaged" in message(pickle.dumps({"a": 1}))
    assert "cannot be read: it has 0 of the 35" in message(without_chunks(content))
    (data,) = folder.glob("*.distcp")
    data.write_bytes(data.read_bytes()[:500])
    assert re.search(
        r"^\S+ of \S+ cannot be read: .*Nothing was changed$", message(content), re.DOTALL
    )
    data.unlink()
    assert "No such file" in message(content)
    assert same(materialize_module(module), net(1))


def without_chunks(content: bytes) -> bytes:
    metadata: Metadata = pickle.loads(content)
    saved = metadata.state_dict_metadata["0.weight"]
    assert isinstance(saved, TensorStorageMetadata)
    saved.chunks.clear()
    return pickle.dumps(metadata)
