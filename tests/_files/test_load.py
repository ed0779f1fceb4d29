"""Checkpoints that are damaged or hostile are refused, and nothing has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as distributed_checkpoint

from tests._files.conftest import (
    build_linear,
    refusal,
    saved,
)
from torchfake import (
    deferred_init,
    fake_mode,
    materialize_module,
    save_materialized,
)


def truncated(path: Path, by: int = 100) -> Path:
    path.write_bytes(path.read_bytes()[:-by])
    return path


class Hostile:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/nonexistent/owned",)


def test_damaged_files(tmp_path: Path) -> None:
    module = deferred_init(build_linear)
    state = build_linear().state_dict()
    cut = truncated(saved(state, tmp_path, "safetensors"))
    assert "some.safetensors cannot be read: it is damaged" in refusal(module, cut)
    cut = truncated(Path(saved(state, tmp_path, "pt")))
    assert "some.pt cannot be read: it is damaged" in refusal(module, cut)
    (tmp_path / "huge.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    assert "cannot be read" in refusal(module, tmp_path / "huge.safetensors")
    torch.save({"0.weight": Hostile()}, tmp_path / "hostile.pt")
    assert "cannot be read" in refusal(module, tmp_path / "hostile.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    assert "holds a list, not a state dict" in refusal(module, tmp_path / "list.pt")
    assert "has no tensors at its top level" in refusal(module, {"net": {"a": torch.ones(1)}})
    assert "is of type list: a checkpoint is a directory, a file" in refusal(module, [1])
    assert "does not exist" in refusal(module, tmp_path / "nothing")
    with fake_mode():
        fake = torch.ones(30, 20)
    assert "0.weight has no values" in refusal(module, {"0.weight": fake})


def test_hostile_indices(tmp_path: Path) -> None:
    module = deferred_init(build_linear)
    index = tmp_path / "model.safetensors.index.json"
    saved(build_linear().state_dict(), tmp_path, "safetensors")

    def refusal_of(content: Any) -> str:
        index.write_text(content if isinstance(content, str) else json.dumps(content))
        return refusal(module, tmp_path)

    assert "cannot be read" in refusal_of("{")
    assert "cannot be read" in refusal_of([])
    assert "cannot be read" in refusal_of({"weight_map": 3})
    for outside in ("../some.safetensors", "/etc/passwd"):
        message = refusal_of({"weight_map": {"0.weight": outside}})
        assert "a file outside its directory" in message
    assert "which does not exist" in refusal_of({"weight_map": {"0.weight": "other.safetensors"}})
    assert "which is not in that file" in refusal_of({"weight_map": {"1.what": "some.safetensors"}})
    index.write_text(json.dumps({"weight_map": {"0.weight": "some.safetensors"}}))
    materialize_module(module, checkpoint=index)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[:-3],
    "half": lambda data: data[: len(data) // 2],
    "other_length": lambda data: (2**63).to_bytes(8, "little") + data[8:],
    "longer": lambda data: data[:20] + data,
    "brackets": lambda data: b"\xa0\x86\x01" + bytes(5) + b"[" * 100_000,
    "garbage": lambda data: bytes(range(256)) * 9,
}


@pytest.mark.filterwarnings("ignore")  # of torch.distributed.checkpoint
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["safetensors", "pt", "old", "index", "shard", "dcp", "metadata"])
def test_each_kind_of_damage(kind: str, damage: str, tmp_path: Path) -> None:
    """The error names the file, or the directory that it is in."""
    module = nn.Linear(30, 30)
    if kind in ("index", "shard"):
        save_materialized(module, tmp_path, max_shard_size=200)
        name = "model.safetensors.index.json" if kind == "index" else "model-00001-of-00002.*"
    elif kind in ("dcp", "metadata"):
        distributed_checkpoint.save(module.state_dict(), checkpoint_id=tmp_path, no_dist=True)
        name = ".metadata" if kind == "metadata" else "*.distcp"
    else:
        name = Path(saved(dict(module.state_dict()), tmp_path, kind)).name
    (file,) = tmp_path.glob(name)
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    checkpoint = file if kind in ("safetensors", "pt", "old") else tmp_path
    assert str(tmp_path) in refusal(deferred_init(nn.Linear, 30, 30), checkpoint)


@pytest.mark.parametrize("what", ["fifo", "long", "nul"])
def test_paths_that_are_no_files(what: str, tmp_path: Path) -> None:
    path = tmp_path / {"fifo": "fifo", "long": "x" * 300, "nul": "a\0b"}[what]
    if what == "fifo":
        os.mkfifo(path)
    assert str(tmp_path) in refusal(deferred_init(nn.Linear, 30, 30), path)
