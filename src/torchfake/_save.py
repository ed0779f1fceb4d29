"""Tensors written to a file as they are made.

Enters: tensors by name, deferred or real. Leaves: a safetensors file with their values. Invariant:
of what is deferred no more is in memory than one tensor and 64 MB, and it stays deferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from torchfake import _private, _replay
from torchfake._chains import Sink
from torchfake._graph import Contents, Deferred
from torchfake._memory import view_of
from torchfake._metadata import Metadata
from torchfake._safetensors import Writer
from torchfake._tensor import FakeTensor, is_deferred_fake

Advance = Callable[[int], None]

_AT_ONCE = 16 * 1024 * 1024
"""Bytes of a tensor in memory that are written at once."""


class _Place(NamedTuple):
    """A tensor of the file, and how it lies in its storage."""

    name: str
    record: Metadata

    @property
    def start_bytes(self) -> int:
        return self.record.offset * self.record.dtype.itemsize

    @property
    def is_in_order(self) -> bool:
        return self.record.is_in_order and not self.record.conj and not self.record.neg


def write_file(
    path: Path,
    tensors: dict[str, torch.Tensor],
    metadata: dict[str, str],
    *,
    num_threads: int | None = None,
    advance: Advance | None = None,
) -> None:
    """Write `tensors`, which are deferred or real, to the safetensors file `path`.

    Args:
        path: of the file; it has this name when all is written.
        tensors: by name.
        metadata: strings for the header.
        num_threads: that make the values; None: ``torch.get_num_threads()``.
        advance: told of each lot of bytes, from any thread.
    """
    with Writer(path, tensors, metadata) as writer:
        write_tensors(writer, tensors, num_threads=num_threads, advance=advance)


class Taker(Protocol):
    """Takes the bytes of tensors, in any order and from any thread."""

    def write(self, name: str, start_bytes: int, values: torch.Tensor) -> None: ...


def write_tensors(
    writer: Taker,
    tensors: dict[str, torch.Tensor],
    *,
    num_threads: int | None = None,
    advance: Advance | None = None,
) -> None:
    """Write the values of `tensors`, in order of their elements, to what takes them."""
    _File(writer, advance or (lambda _: None)).write(tensors, num_threads)


class _File:
    def __init__(self, writer: Taker, advance: Advance) -> None:
        self._writer = writer
        self._advance = advance
        self._places: dict[Contents, list[_Place]] = {}

    def write(self, tensors: dict[str, torch.Tensor], num_threads: int | None) -> None:
        for name, tensor in tensors.items():
            recorded = recorded_of(tensor)
            if recorded is None:
                self._write_whole(name, tensor)
            elif recorded.real is not None:
                self._write_real(_Place(name, tensor._fake_meta), recorded.real)  # type: ignore[attr-defined]
            else:
                place = _Place(name, tensor._fake_meta)  # type: ignore[attr-defined]
                self._places.setdefault(recorded.contents, []).append(place)
        sinks = {
            contents: self._sink(places)
            for contents, places in self._places.items()
            if all(place.is_in_order for place in places)
        }
        _replay.replay(self._places, self._take, sinks=sinks, num_threads=num_threads)

    def _take(self, contents: Contents, storage: torch.UntypedStorage) -> None:
        """Of contents that could not be made piece by piece."""
        for place in self._places[contents]:
            self._write_real(place, storage)

    def _write_real(self, place: _Place, storage: torch.UntypedStorage) -> None:
        with _private.as_eager():
            self._write_whole(place.name, view_of(storage, place.record))

    def _write_whole(self, name: str, tensor: torch.Tensor) -> None:
        with _private.as_eager():
            start_bytes = 0
            for part in _parts(tensor.detach()):
                self._write(name, start_bytes, part)
                start_bytes += part.nbytes

    def _write(self, name: str, start_bytes: int, values: torch.Tensor) -> None:
        self._writer.write(name, start_bytes, values)
        self._advance(values.nbytes)

    def _sink(self, places: list[_Place]) -> Sink:
        """Writes of a piece of their storage what belongs to each."""

        def write(start: int, values: torch.Tensor) -> None:
            data = values.view(torch.uint8)
            begin = start * values.element_size()
            for place in places:
                first = max(begin, place.start_bytes)
                last = min(begin + len(data), place.start_bytes + place.record.num_bytes)
                if first < last:
                    piece = data[first - begin : last - begin]
                    self._write(place.name, first - place.start_bytes, piece)

        return write


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor in order, a few rows at once: what is no plain memory has to be copied."""
    num_bytes = tensor.nbytes
    if num_bytes <= _AT_ONCE or not tensor.dim():
        yield tensor
    elif len(tensor) == 1 or num_bytes > _AT_ONCE * len(tensor):
        for row in tensor:
            yield from _parts(row)
    else:
        yield from tensor.split(max(1, len(tensor) * _AT_ONCE // num_bytes))


def recorded_of(tensor: torch.Tensor) -> Deferred | None:
    """What a deferred tensor's storage has; None of a real one."""
    if not is_deferred_fake(tensor):
        return None
    assert isinstance(tensor, FakeTensor)
    recorded = tensor._fake_storage.recorded
    assert isinstance(recorded, Deferred)
    return recorded
