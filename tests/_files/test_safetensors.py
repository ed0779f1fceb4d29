"""Safetensors files: the bytes that the library would write."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

from torchfake._files.safetensors import DTYPES, Writer


def test_the_bytes_of_the_library(tmp_path: Path) -> None:
    """Every dtype it has, in its order."""
    torch.manual_seed(0)
    tensors = {}
    for i, dtype in enumerate(DTYPES):
        for j, size in enumerate([(3, 5), (), (0, 2)]):
            raw = torch.randint(0, 2, (*size, dtype.itemsize), dtype=torch.uint8)
            tensors[f"{(7 * i) % 5}.{i}.{j}"] = raw.view(dtype).reshape(size)
    safetensors.torch.save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    with Writer(tmp_path / "ours", tensors, {"format": "pt"}) as writer:
        for name, tensor in tensors.items():
            writer.write(name, 0, tensor)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_every_dtype_of_the_library_is_known() -> None:
    assert set(DTYPES) >= set(safetensors.torch._TYPES.values()) - {torch.float4_e2m1fn_x2}


def test_two_at_once_do_not_write_one_file(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3)}
    with (
        Writer(tmp_path / "x", tensors, {}) as first,
        Writer(tmp_path / "x", tensors, {}) as second,
    ):
        second.write("a", 0, torch.ones(3))
        first.write("a", 0, torch.ones(3))
    assert safetensors.torch.load_file(tmp_path / "x")["a"].tolist() == [1, 1, 1]
