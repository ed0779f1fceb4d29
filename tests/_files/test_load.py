"""Checkpoints that are damaged or hostile are refused, and nothing has changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from tests._files.conftest import (
    build_linear,
    refusal,
    saved,
)
from torchfake import (
    deferred_init,
    fake_mode,
    materialize_module,
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
    assert "is a directory, a file or a state dict, not a list" in refusal(module, [1])
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
