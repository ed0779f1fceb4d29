"""The values of tensors, written to a safetensors file as they are computed.

Input: tensors by name, deferred or real; or the shards that a rank has of them. Output: a file with
their values, whose bytes do not depend on the sharding. Invariant: computing deferred tensors takes
no more memory than the largest of them and 64 MB, and they stay deferred; nothing is gathered: each
rank writes its shards at their offsets; a file gets its name when all of its bytes are on the disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from torchfake._core.memory import raw_bytes, view_of
from torchfake._core.metadata import Metadata
from torchfake._files.disk import reported
from torchfake._files.file_plan import PlannedFile
from torchfake._files.safetensors import Writer
from torchfake._files.state_dict import State, deferred_state_of
from torchfake._graph.operations import Contents
from torchfake._replay import replay
from torchfake._replay.tile_loop import BlockWriter
from torchfake._sharding.local_slices import LocalSlices, local_slices_of
from torchfake._sharding.shared_errors import on_all_ranks, on_first_rank
from torchfake._torch import autograd, dispatcher
from torchfake._torch.distributed import dtensors
from torchfake.errors import CheckpointError

Advance = Callable[[int], None]
"""Called with the number of bytes that were written, from any thread."""

_BLOCK_BYTES = 16 * 1024 * 1024
"""Bytes of a tensor in memory that are written at once."""


def write_file(
    path: Path,
    tensors: State,
    metadata: dict[str, str],
    *,
    advance: Advance,
    num_threads: int | None = None,
) -> None:
    """Write `tensors`, deferred or real, to the safetensors file `path`.

    Args:
        path: the file gets this name when it is complete.
        tensors: by name.
        metadata: strings for the header.
        advance: called with the number of bytes that were written, from any thread.
        num_threads: number of threads that compute values; None: ``torch.get_num_threads()``.
    """
    with Writer(path, tensors, metadata) as writer:
        _TensorWriter(writer, advance).write(tensors, num_threads)


class _ByteWriter(Protocol):
    """Writes the bytes of tensors, in any order and from any thread."""

    def write(self, name: str, start_bytes: int, values: torch.Tensor) -> None: ...


class _View(NamedTuple):
    """A tensor of the file, and its metadata, which locate it in its storage."""

    name: str
    record: Metadata

    @property
    def start_bytes(self) -> int:
        return self.record.offset * self.record.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return self.record.is_contiguous and not self.record.differs_from_memory


class _TensorWriter:
    """Writes the values of tensors, in element order, whole or block by block."""

    def __init__(self, writer: _ByteWriter, advance: Advance) -> None:
        self._writer = writer
        self._advance = advance
        self._views: dict[Contents, list[_View]] = {}  # tensors of each storage to be computed

    def write(self, tensors: State, num_threads: int | None) -> None:
        for name, tensor in tensors.items():
            deferred = deferred_state_of(tensor)
            if deferred is None:
                self._write_real(name, tensor)
                continue
            view = _View(name, tensor._fake_meta)  # type: ignore[attr-defined]
            if deferred.real is not None:
                self._write_view(view, deferred.real)
            else:
                self._views.setdefault(deferred.contents, []).append(view)
        block_writers = {
            contents: self._block_writer(views)
            for contents, views in self._views.items()
            if all(view.is_contiguous for view in views)
        }
        replay.replay(
            self._views, self._write_contents, block_writers=block_writers, num_threads=num_threads
        )

    def _write_contents(self, contents: Contents, storage: torch.UntypedStorage) -> None:
        """Write the tensors of a storage that was computed as a whole."""
        for view in self._views[contents]:
            self._write_view(view, storage)

    def _write_view(self, view: _View, storage: torch.UntypedStorage) -> None:
        with dispatcher.as_eager():
            self._write_real(view.name, view_of(storage, view.record))

    def _write_real(self, name: str, tensor: torch.Tensor) -> None:
        with dispatcher.as_eager():
            start_bytes = 0
            for block in _blocks(tensor.detach()):
                self._write(name, start_bytes, block)
                start_bytes += block.nbytes

    def _write(self, name: str, start_bytes: int, values: torch.Tensor) -> None:
        self._writer.write(name, start_bytes, values)
        self._advance(values.nbytes)

    def _block_writer(self, views: list[_View]) -> BlockWriter:
        """A function that writes, for one block of the storage, the part of each of `views`."""

        def write(start: int, values: torch.Tensor) -> None:
            data = values.view(torch.uint8)
            begin = start * values.element_size()
            for view in views:
                first = max(begin, view.start_bytes)
                last = min(begin + len(data), view.start_bytes + view.record.num_bytes)
                if first < last:
                    overlap = data[first - begin : last - begin]
                    self._write(view.name, first - view.start_bytes, overlap)

        return write


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor in element order, a few rows at a time, since non-contiguous rows are copied."""
    num_bytes = tensor.nbytes
    if num_bytes <= _BLOCK_BYTES or not tensor.dim():
        yield tensor
    elif len(tensor) == 1 or num_bytes > _BLOCK_BYTES * len(tensor):
        for row in tensor:
            yield from _blocks(row)
    else:
        yield from tensor.split(max(1, len(tensor) * _BLOCK_BYTES // num_bytes))


# Files that several ranks write together.


class SharedFileWriter:
    """Writes files together with the other ranks.

    Args:
        folder: a directory that all ranks see.
        state: the tensors of the sharded module; each rank has its shards.
        advance: called with the number of bytes that this rank has written, from any thread.
        num_threads: number of threads that compute values; None: ``torch.get_num_threads()``.
    """

    def __init__(
        self, folder: Path, state: State, *, advance: Advance, num_threads: int | None
    ) -> None:
        self._folder = folder
        self._state = state
        self._advance = advance
        self._num_threads = num_threads

    def write(self, file: PlannedFile) -> None:
        """Write a file. All ranks must call this."""
        path = self._folder / file.name
        incomplete = self._folder / on_first_rank(lambda: self._begin(path, file))
        try:
            on_all_ranks(lambda: self._write_shards(path, file, incomplete))
            on_first_rank(lambda: _rename(incomplete, path))
        except BaseException:  # another rank may have died, too
            if _is_first_rank():
                with contextlib.suppress(OSError):
                    incomplete.unlink()
            raise

    def _begin(self, path: Path, file: PlannedFile) -> str:
        """Create the file at its final size; returns the temporary name."""
        writer = Writer(path, self._on_meta(file), file.metadata)
        try:
            writer.finish()
        except BaseException:
            writer.discard()
            raise
        return writer.incomplete.name

    def _on_meta(self, file: PlannedFile) -> State:
        """The full tensors of a file, on the meta device."""
        full = {name: self._state[source] for name, source in file.sources.items()}
        with dispatcher.as_eager():
            return {n: torch.empty(t.shape, dtype=t.dtype, device="meta") for n, t in full.items()}

    def _write_shards(self, path: Path, file: PlannedFile, incomplete: Path) -> None:
        """Write this rank's part of a file."""
        tensors = {name: self._state[source] for name, source in file.sources.items()}
        found = {name: shard_to_write(tensor) for name, tensor in tensors.items()}
        shards = {name: _with_own_memory(t) for name, t in found.items() if t is not None}
        if not shards:
            return
        if not incomplete.exists():
            raise CheckpointError(f"{self._folder} is not a directory that all ranks share")
        slices = {name: local_slices_of(name, tensors[name]) for name in shards}
        writer = Writer(path, self._on_meta(file), file.metadata, started=incomplete)
        try:
            placed = _ShardWriter(writer, slices, shards)
            _TensorWriter(placed, self._advance).write(shards, self._num_threads)
        finally:
            writer.finish()


def _rename(incomplete: Path, path: Path) -> None:
    with reported(path, incomplete.stat().st_size):
        os.replace(incomplete, path)


def num_bytes_to_write(tensors: Iterable[torch.Tensor]) -> int:
    """The number of bytes that this rank writes for the tensors of a sharded module."""
    shards = map(shard_to_write, tensors)
    return sum(shard.numel() * shard.dtype.itemsize for shard in shards if shard is not None)


def shard_to_write(tensor: torch.Tensor) -> torch.Tensor | None:
    """The shard of a tensor that this rank writes; None if empty, or an earlier rank writes it."""
    if not dtensors.is_dtensor(tensor):
        return tensor if _is_first_rank() and tensor.numel() else None
    shard = dtensors.shard_of(tensor)
    return shard if shard.numel() and dtensors.is_first_replica(tensor) else None


def _is_first_rank() -> bool:
    return dtensors.rank_and_world_size()[0] == 0


def _with_own_memory(shard: torch.Tensor) -> torch.Tensor:
    """Copy a deferred shard, if it covers less than half of its storage: otherwise the whole
    storage would be computed. Other shards are returned as they are.
    """
    deferred = deferred_state_of(shard)
    if deferred is None or deferred.real is not None:
        return shard
    if 2 * shard.numel() * shard.dtype.itemsize > deferred.contents.cell.num_bytes:
        return shard
    with autograd.no_grad():
        return shard.detach().clone()


class _ShardWriter:
    """Writes the bytes of each shard to its place in the full tensor."""

    def __init__(self, writer: Writer, slices: dict[str, LocalSlices], shards: State) -> None:
        self._writer = writer
        self._slices = slices
        self._itemsizes = {name: shard.dtype.itemsize for name, shard in shards.items()}

    def write(self, name: str, start_bytes: int, values: torch.Tensor) -> None:
        raw: Any = raw_bytes(values).numpy()
        data, done = memoryview(raw), 0
        stop_bytes, itemsize = start_bytes + len(data), self._itemsizes[name]
        for offset, num_bytes in self._slices[name].byte_runs(start_bytes, stop_bytes, itemsize):
            self._writer.write_bytes(name, offset, data[done : done + num_bytes])
            done += num_bytes
