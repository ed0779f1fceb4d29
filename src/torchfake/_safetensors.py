"""A safetensors file, written piece by piece.

Enters: names, dtypes and shapes; then bytes, in any order and from any thread. Leaves: the file
that ``safetensors.torch.save_file`` would have written, byte for byte. Invariant: under its own
name it is there only when all of it is.

The library writes tensors that are in memory, all at once; these need not be. The format is that of
https://huggingface.co/docs/safetensors: the length of a JSON header, the header, the tensors'
bytes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from torchfake._memory import raw_bytes
from torchfake.errors import CheckpointError

INCOMPLETE = ".incomplete"
"""What the name of a file ends with until it is whole."""

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
}
_RANKS = {name: rank for rank, name in enumerate(
    ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",
     "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64")
)}  # fmt: skip
"""The library puts the widest first, and equally wide ones in this order, backwards."""


def incomplete_name(path: Path) -> Path:
    """A name for what will be `path`, which no other process or call gives."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{INCOMPLETE}")


def remove_incomplete(folder: Path) -> None:
    """Remove what was left by processes that are no more, where it can be told."""
    for path in folder.glob(f"*{INCOMPLETE}"):
        found = re.search(r"\.(\d+)-[0-9a-f]{8}$", path.name.removesuffix(INCOMPLETE))
        if found is not None and os.name == "posix" and not _is_alive(int(found[1])):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's
    return True


class Writer:
    """A file of tensors to come.

    Args:
        path: its name.
        tensors: the metadata of what will be in it, by name; their dtypes were checked.
        metadata: strings for the header.
        begun: its name until then, if another process has begun it, of the same tensors.
    """

    def __init__(
        self,
        path: Path,
        tensors: dict[str, torch.Tensor],
        metadata: dict[str, str],
        *,
        begun: Path | None = None,
    ) -> None:
        self._path = path
        self._lock = threading.Lock()
        header, self._places = _header(tensors, metadata)
        self._begin = len(header)
        self._num_bytes = self._begin + sum(tensor.nbytes for tensor in tensors.values())
        self.incomplete = incomplete_name(path) if begun is None else begun
        mode = "xb" if begun is None else "r+b"
        self._file = open(self.incomplete, mode, buffering=0)  # noqa: SIM115
        if begun is None:
            self._file.write(header)
            self._file.truncate(self._num_bytes)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Give the file its name; remove it, if something went wrong."""
        if kind is None:
            self.finish()
            os.replace(self.incomplete, self._path)
        else:
            self._file.close()
            self.incomplete.unlink(missing_ok=True)

    def finish(self) -> None:
        """Have on the disk what was written, and let go of the file."""
        os.fsync(self._file.fileno())
        self._file.close()

    def write(self, name: str, start_bytes: int, values: torch.Tensor) -> None:
        """Write `values` from a byte of the tensor `name` on."""
        raw: Any = raw_bytes(values).numpy()
        self.write_bytes(name, start_bytes, memoryview(raw))

    def write_bytes(self, name: str, start_bytes: int, data: memoryview) -> None:
        """The same of bytes."""
        place = self._begin + self._places[name] + start_bytes
        while data:
            step = self._write_at(place, data)
            place, data = place + step, data[step:]

    def _write_at(self, place: int, data: memoryview) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._file.fileno(), data, place)
        with self._lock:
            self._file.seek(place)
            return self._file.write(data)


def _header(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> tuple[bytes, dict[str, int]]:
    """The file up to its first tensor, and where each begins behind that."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    places, place = {}, 0
    for name in sorted(tensors, key=lambda name: (-_rank(tensors[name]), name)):
        tensor = tensors[name]
        places[name], end = place, place + tensor.nbytes
        offsets = [place, end]
        entries[name] = {
            "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets
        }  # fmt: skip
        place = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def _rank(tensor: torch.Tensor) -> int:
    return _RANKS[DTYPES[tensor.dtype]]


def check_dtypes(tensors: dict[str, torch.Tensor]) -> None:
    """Refuse what such a file cannot hold.

    Raises:
        CheckpointError: naming the tensor.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
            raise CheckpointError(
                f"{name} is {tensor.dtype} and {tensor.layout}, which safetensors files do not "
                "have: convert it first"
            )
