"""A safetensors file, written block by block.

Input: names, dtypes and shapes; then bytes, in any order and from any thread. Output: the file that
``safetensors.torch.save_file`` would have written, byte for byte. Invariant: a file has its name
only when it is complete. Called by: ``_files/write``; ``_files/load`` and ``_files/directory`` for
the names of dtypes and of incomplete files.

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

from torchfake._core.memory import raw_bytes
from torchfake.errors import CheckpointError

INCOMPLETE = ".incomplete"
"""The end of a file's name until it is complete."""

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
_ORDER = {name: position for position, name in enumerate(
    ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",
     "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64")
)}  # fmt: skip
"""The library writes tensors in the reverse of this order: the widest dtype first."""


def incomplete_name(path: Path) -> Path:
    """A unique name for the file that will be `path`."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{INCOMPLETE}")


def remove_incomplete(folder: Path) -> None:
    """Remove files that processes have left which do not run any more, where that is known."""
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
        pass  # of another user
    return True


class Writer:
    """A file whose tensors are written later.

    Args:
        path: its name, once it is complete.
        tensors: what will be in it, by name; only their metadata is read. Their dtypes were
            checked.
        metadata: strings for the header.
        started: its name until then, if another process has started it, for the same tensors.
    """

    def __init__(
        self,
        path: Path,
        tensors: dict[str, torch.Tensor],
        metadata: dict[str, str],
        *,
        started: Path | None = None,
    ) -> None:
        self._path = path
        self._lock = threading.Lock()
        header, self._offsets = _header(tensors, metadata)
        num_bytes = len(header) + sum(tensor.nbytes for tensor in tensors.values())
        self.incomplete = incomplete_name(path) if started is None else started
        mode = "xb" if started is None else "r+b"
        self._file = open(self.incomplete, mode, buffering=0)  # noqa: SIM115
        if started is None:
            self._file.write(header)
            self._file.truncate(num_bytes)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Give the file its name; remove it, if there was an error."""
        if kind is None:
            self.finish()
            os.replace(self.incomplete, self._path)
        else:
            self._file.close()
            self.incomplete.unlink(missing_ok=True)

    def finish(self) -> None:
        """Flush what was written to the disk, and close the file."""
        os.fsync(self._file.fileno())
        self._file.close()

    def write(self, name: str, start_bytes: int, values: torch.Tensor) -> None:
        """Write `values` into the tensor `name`, from its byte `start_bytes` on."""
        raw: Any = raw_bytes(values).numpy()
        self.write_bytes(name, start_bytes, memoryview(raw))

    def write_bytes(self, name: str, start_bytes: int, data: memoryview) -> None:
        """Write `data` into the tensor `name`, from its byte `start_bytes` on."""
        offset = self._offsets[name] + start_bytes
        while data:
            num_bytes = self._write_at(offset, data)
            offset, data = offset + num_bytes, data[num_bytes:]

    def _write_at(self, offset: int, data: memoryview) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._file.fileno(), data, offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.write(data)


def _header(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> tuple[bytes, dict[str, int]]:
    """The file up to its first tensor, and the offset of each tensor in the file."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    starts, start = {}, 0
    for name in sorted(tensors, key=lambda name: (-_ORDER[DTYPES[tensors[name].dtype]], name)):
        tensor = tensors[name]
        starts[name], stop = start, start + tensor.nbytes
        offsets = [start, stop]
        entries[name] = {
            "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets
        }  # fmt: skip
        start = stop
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}


def check_dtypes(tensors: dict[str, torch.Tensor]) -> None:
    """Refuse a tensor that such a file cannot hold.

    Raises:
        CheckpointError: naming the tensor.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
            raise CheckpointError(
                f"{name} is {tensor.dtype} and {tensor.layout}, which safetensors files do not "
                "support: convert it first"
            )
