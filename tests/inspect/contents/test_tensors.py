"""Contents of checkpoints: headers alone are read, and what cannot be read is named."""

from __future__ import annotations

import json
import pickle
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.inspect.compared_models import stack
from torchfake import fake_mode
from torchfake.errors import CheckpointError, TargetError
from torchfake.inspect.contents.diff import diff

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


safetensors = pytest.importorskip("safetensors.torch")


def resident_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_only_the_header_of_a_file_is_read(tmp_path: Path) -> None:
    """A file of 4 GB, most of which is not even on the disk."""
    size = 4 << 30
    header = {"weight": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    before = resident_bytes()
    found = diff(path, path)
    assert resident_bytes() - before < 50 << 20
    assert found.is_equal
    assert found.a.size_bytes == size


def test_a_dtype_that_torch_does_not_have(tmp_path: Path) -> None:
    header = {"weight": {"dtype": "F4", "shape": [4, 2], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with fake_mode():
        module = nn.Linear(2, 4, bias=False)
    found = diff(module, path)
    assert found.is_equal
    assert "weight is F4, which torch does not have" in found.notes[0]
    assert found.b.tensors["weight"].dtype is None


# What cannot be read.


class Code:
    """What a pickle runs when it is read by a reader that trusts it."""

    def __reduce__(self) -> Any:
        return print, ("run",)


def _truncated(folder: Path) -> Path:
    safetensors.save_file({"w": torch.zeros(100)}, folder / "cut.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "cut.safetensors").read_bytes()[:-7])
    return folder / "cut.safetensors"


def _huge_header(folder: Path) -> Path:
    (folder / "header.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    return folder / "header.safetensors"


def _text(folder: Path) -> Path:
    (folder / "text.pt").write_text("not a checkpoint")
    return folder / "text.pt"


def _code(folder: Path) -> Path:
    (folder / "code.bin").write_bytes(pickle.dumps(Code()))
    return folder / "code.bin"


def _number(folder: Path) -> Path:
    torch.save(3, folder / "number.pth")
    return folder / "number.pth"


def _shard_missing(folder: Path) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "gone.safetensors"}}))
    return folder


def _outside(folder: Path) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "../w.safetensors"}}))
    return folder


def _empty(folder: Path) -> Path:
    return folder


def _missing(folder: Path) -> Path:
    return folder / "missing.safetensors"


@pytest.mark.parametrize(
    "make",
    [_truncated, _huge_header, _text, _code, _number, _shard_missing, _outside, _empty, _missing],
)
def test_checkpoints_that_cannot_be_read(make: Any, tmp_path: Path, capsys: Any) -> None:
    path = make(tmp_path)
    for a, b in ((path, stack()), (stack(), str(path))):
        with pytest.raises(CheckpointError) as caught:
            diff(a, b)
        assert len(str(caught.value).splitlines()) == 1
        assert path.name in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("transformers:NoSuchModel", "has no 'NoSuchModel'"),
        ("LlamaForCausalLM", "did you mean transformers:LlamaForCausalLM?"),
        ("/no/such/folder", "no such folder"),
        (3, "b is of type int: give a module, a TARGET or the path of a checkpoint"),
    ],
)
def test_sources_that_name_nothing(source: Any, said: str) -> None:
    with pytest.raises(TargetError) as caught:
        diff(stack(), source)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
