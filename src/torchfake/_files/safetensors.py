"""A safetensors file, written block by block.

Input: names, dtypes and shapes; then bytes, in any order and from any thread. Output: the file that
``safetensors.torch.save_file`` would have written, byte for byte. Invariant: a file gets its name
only when it is complete.

The library's own writer needs all tensors in memory at once. The format is described at
https://huggingface.co/docs/safetensors: the length of a JSON header, the header, the tensors'
bytes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from torchfake._core.memory import raw_bytes
from torchfake._files.disk import incomplete_name, reported
from torchfake._torch.contexts import holding
from torchfake.errors import CheckpointError

METADATA = "__metadata__"
"""The name in a header that stands for the file's metadata, not for a tensor."""

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""

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


class Writer:
    """A safetensors file whose tensors are written later.

    Args:
        path: the name of the file, once it is complete.
        tensors: the tensors of the file, by name; only their metadata is read.
            :func:`check_can_be_saved` must have accepted them.
        metadata: strings for the header.
        started: the temporary name of the file, if another process has begun it for these tensors.
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
        header, self._offsets = _header(path, tensors, metadata)
        self._num_bytes = len(header) + sum(tensor.nbytes for tensor in tensors.values())
        self.incomplete = incomplete_name(path) if started is None else started
        mode = "xb" if started is None else "r+b"
        with reported(path, self._num_bytes):
            self._file = open(self.incomplete, mode, buffering=0)  # noqa: SIM115
        if started is None:
            self._begin(header)

    def _begin(self, header: bytes) -> None:
        """Extend the file to its final size, and write its header."""
        try:
            with reported(self._path, self._num_bytes):
                os.ftruncate(self._file.fileno(), self._num_bytes)
            self._write_at(0, memoryview(header))
        except BaseException:
            self.discard()
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Finish the file and give it its name; if there was an error, remove the file."""
        try:
            if kind is None:
                self.finish()
                self.rename()
        except BaseException:
            self.discard()
            raise
        if kind is not None:
            self.discard()

    def finish(self) -> None:
        """Flush the file to the disk, and close it."""
        with reported(self._path, self._num_bytes):
            try:
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def rename(self) -> None:
        """Give the file its name."""
        with reported(self._path, self._num_bytes):
            os.replace(self.incomplete, self._path)

    def discard(self) -> None:
        """Close the file and remove it."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.incomplete.unlink()

    def write(self, name: str, start_bytes: int, values: torch.Tensor) -> None:
        """Write `values` into the tensor `name`, from its byte `start_bytes` on."""
        raw: Any = raw_bytes(values).numpy()
        self.write_bytes(name, start_bytes, memoryview(raw))

    def write_bytes(self, name: str, start_bytes: int, data: memoryview) -> None:
        """Write `data` into the tensor `name`, from its byte `start_bytes` on."""
        self._write_at(self._offsets[name] + start_bytes, data)

    def _write_at(self, offset: int, data: memoryview) -> None:
        with reported(self._path, self._num_bytes):
            while data:  # near a full disk or a size limit, the system writes only a part
                num_bytes = self._write_some(offset, data)
                if not num_bytes:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                offset, data = offset + num_bytes, data[num_bytes:]

    def _write_some(self, offset: int, data: memoryview) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._file.fileno(), data, offset)
        with holding(self._lock):
            self._file.seek(offset)
            return self._file.write(data)


def _header(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> tuple[bytes, dict[str, int]]:
    """The bytes of the file up to its first tensor, and the offset of each tensor in the file."""
    entries: dict[str, Any] = {METADATA: metadata} if metadata else {}
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
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"the names and shapes of {path} have {len(text):,} bytes, and no reader takes more "
            f"than {MAX_HEADER_BYTES:,}: give shorter names, or a smaller max_shard_size"
        )
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}


def read_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file.

    Raises:
        OSError, ValueError, RecursionError: if `path` is not a safetensors file, or its size does
            not match its header.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: Any = json.loads(file.read(min(size, MAX_HEADER_BYTES)))
        num_bytes = os.fstat(file.fileno()).st_size - 8 - size
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    entries = [entry for name, entry in header.items() if name != METADATA]
    if num_bytes != max((_stop_of(entry) for entry in entries), default=0):
        raise ValueError("it was truncated")
    return header


def _stop_of(entry: Any) -> int:
    """The end of a tensor in the file, counted from the end of the header."""
    match entry:
        case {"data_offsets": [int(), int() as stop]}:
            return stop
    raise ValueError("its header does not say where its tensors are")


def check_can_be_saved(tensors: dict[str, torch.Tensor]) -> None:
    """Check that a safetensors file can hold these tensors, under these names.

    Raises:
        CheckpointError: if not, naming the tensor.
    """
    for name, tensor in tensors.items():
        _check_name(name)
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
            raise CheckpointError(
                f"{name} is {tensor.dtype} and {tensor.layout}, which safetensors files do not "
                "support: convert it first"
            )


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise CheckpointError(f"{name!r} is a {type(name).__name__}: the name of a tensor is a str")
    if name == METADATA:
        raise CheckpointError(
            f"no tensor of a safetensors file can be named {METADATA}, as its header has other "
            "data there: rename it"
        )
    if not _is_unicode(name):
        raise CheckpointError(
            f"{name!r} has half of a surrogate pair, which a safetensors file cannot have in a "
            "name: rename it"
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
