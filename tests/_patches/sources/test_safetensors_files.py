"""Bytes of safetensors in memory, and small values of files, in both modes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from torchfake import (
    deferred_init,
    deferred_mode,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_tensor,
)

pytest.importorskip("safetensors")

from safetensors.torch import load, save, save_file

VALUES = {
    "large": torch.arange(300_000.0),
    "half": torch.ones(4, dtype=torch.bfloat16),
    "none": torch.empty(0, 3),
    "number": torch.tensor(3),
}


def test_bytes_in_memory() -> None:
    data = save(VALUES)
    with fake_mode():
        fakes = load(data)
    with deferred_mode():
        deferred = load(data)
        doubled = deferred["large"] * 2
    assert all(map(is_fake, fakes.values()))
    assert fakes["number"].item() == 3
    assert all(map(is_deferred, deferred.values()))
    for name, value in VALUES.items():
        assert torch.equal(materialize_tensor(deferred[name]), value)
    assert torch.equal(materialize_tensor(doubled), VALUES["large"] * 2)


@pytest.mark.parametrize("options", [{}, {"map_location": "cpu"}, {"weights_only": False}])
@pytest.mark.parametrize("kind", ["path", "mapped", "open", "bytes"])
def test_small_values_of_torch_load_are_known(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "values.pt"
    torch.save(VALUES, path)
    with fake_mode():
        if kind == "bytes":
            loaded = torch.load(io.BytesIO(path.read_bytes()), **options)
        elif kind == "open":
            with path.open("rb") as file:
                loaded = torch.load(file, **options)
        else:
            loaded = torch.load(path, mmap=kind == "mapped", **options)
        assert all(map(is_fake, loaded.values()))
        assert loaded["number"].item() == 3
        assert loaded["half"].tolist() == [1.0] * 4
        with pytest.raises(Exception, match="value"):
            loaded["large"].tolist()


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_an_open_file_is_not_mapped_as_in_eager(mode: Any, tmp_path: Path) -> None:
    torch.save(VALUES, tmp_path / "values.pt")
    refused = pytest.raises(ValueError, match="mmap")
    with (tmp_path / "values.pt").open("rb") as file, mode(), refused:
        torch.load(file, mmap=True)


def test_writing_deferred_fakes(tmp_path: Path) -> None:
    module = deferred_init(torch.nn.Linear, 30, 30)
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    loaded = load((tmp_path / "a.safetensors").read_bytes())
    assert torch.equal(loaded["weight"], materialize_tensor(module.weight))
