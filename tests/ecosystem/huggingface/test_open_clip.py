"""A model of open_clip whose checkpoint is loaded in a mode."""

from __future__ import annotations

from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from tests.ecosystem.huggingface.pretrained import assert_loads_as_eager


@pytest.mark.parametrize("name", ["saved.pt", "saved.safetensors"])
def test_a_checkpoint(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    torch.manual_seed(0)
    state = open_clip.create_model("RN50", pretrained=None).state_dict()
    torch.save(state, path) if name.endswith("pt") else save_file(state, path)
    assert_loads_as_eager(lambda: open_clip.create_model("RN50", pretrained=path))
