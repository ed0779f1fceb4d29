"""Shards, written by all ranks to the same files.

Enters: the tensors of a state dict, sharded. Leaves: safetensors files of the whole tensors, to
which each rank has written what it has, at its place. Invariant: nothing is gathered; what one rank
finds wrong is an error of all; a file has its name when all of its bytes are on the disk.

What ranks have in common is settled by the first: which file gets what. It does that with fakes of
the whole tensors, so that names, ties and sizes of files are those of the unsharded module.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from torchfake import _private
from torchfake import _private_distributed as _distributed
from torchfake._cut import record_of, whole_of
from torchfake._digest import digest_of_contents, digest_of_record, packed
from torchfake._members import shards_among
from torchfake._memory import raw_bytes
from torchfake._parts import Part, part_of
from torchfake._ranks import check_agreement
from torchfake._safetensors import Writer
from torchfake._save import Advance, recorded_of, write_tensors
from torchfake._tensor import FakeTensor
from torchfake.errors import CheckpointError, RankMismatchError
from torchfake.fake import fake_mode

_T = TypeVar("_T")


class PlannedFile(NamedTuple):
    """A file to be written."""

    name: str
    sources: dict[str, str]  # names in the file, and those of the state dict
    metadata: dict[str, str]


def is_sharded(tensors: dict[str, torch.Tensor]) -> bool:
    return any(isinstance(t, _distributed.dtensor_class()) for t in tensors.values())


def by_first(do: Callable[[], _T]) -> _T:
    """What `do` gives on rank 0, on all ranks. Its error is everybody's."""
    outcome: tuple[Any, str | None] = None, None
    if _distributed.rank_and_world()[0] == 0:
        try:
            outcome = do(), None
        except Exception as error:
            _distributed.from_first((None, _said(error)))
            raise
    value, trouble = _distributed.from_first(outcome)
    if trouble is not None:
        raise CheckpointError(f"rank 0 says: {trouble}")
    found: _T = value
    return found


def by_all(do: Callable[[], _T]) -> _T:
    """What `do` gives on this rank, once it has gone well on all of them."""
    result, failure = None, None
    try:
        result = do()
    except Exception as error:
        failure = error
    troubles = _distributed.from_all(None if failure is None else _said(failure))
    if failure is not None:
        raise failure
    for rank, trouble in enumerate(troubles):
        if trouble is not None:
            raise CheckpointError(f"rank {rank} says: {trouble}")
    done: _T = result  # type: ignore[assignment]
    return done


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


# Before anything is written.


def check_same(tensors: dict[str, torch.Tensor]) -> None:
    """Find out whether all ranks are about to write the same module.

    Raises:
        RankMismatchError: if not, on all ranks.
        CheckpointError: if the place of a shard cannot be told, or ranks are only imagined.
    """
    if _distributed.is_alone_with_others():
        raise CheckpointError(
            "the process group is fake, so that nobody would write what the other ranks have: run "
            "this on real ranks, or save the module before it is sharded"
        )
    by_all(lambda: [part_of(name, tensor) for name, tensor in tensors.items()])
    kind = _distributed.dtensor_class()
    described = packed(
        [(name, str(t.dtype), tuple(t.shape), isinstance(t, kind)) for name, t in tensors.items()]
    )
    others = [
        rank for rank, each in enumerate(_distributed.from_all(described)) if each != described
    ]
    if others:
        raise RankMismatchError(
            f"ranks {', '.join(map(str, others[:8]))} would write other tensors than rank "
            f"{_distributed.rank_and_world()[0]}: all ranks have to save the same module, sharded "
            "in the same way. Nothing was written"
        )
    check_agreement(shards_among(tensors.items()))


def digest_of_shards(
    tensors: dict[str, torch.Tensor], digest_of: Callable[[torch.Tensor], bytes]
) -> str:
    """What :func:`torchfake.checkpoint.digest_of` would give for the unsharded module; with what
    all ranks have, where there is no record of the whole.
    """
    wholes: list[tuple[str, bytes]] = []
    own: list[tuple[str, bytes]] = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, _distributed.dtensor_class()):
            wholes.append((name, digest_of(tensor)))
            continue
        shard = _distributed.shard_of(tensor)
        whole = _digest_of_whole(tensor)
        wholes.append((name, b"" if whole is None else whole))
        if whole is None and shard.numel():
            own.append((name, digest_of(shard)))
    owns = _distributed.from_all(packed(own))
    digest = packed(wholes)
    nothing = packed([])
    is_known = all(each == nothing for each in owns)
    # The first rank has a part of all there is.
    return str(_distributed.from_first((digest if is_known else packed(digest, owns)).hex()))


def _digest_of_whole(dtensor: Any) -> bytes | None:
    """Of a deferred tensor that was cut, as if it had not been; None if it is not known."""
    whole = whole_of(dtensor)
    record = None if whole is None else record_of(dtensor, whole)
    if whole is None or record is None:
        return None
    return packed(digest_of_contents(whole.contents), digest_of_record(record))


def stand_ins(tensors: dict[str, torch.Tensor]) -> dict[str, FakeTensor]:
    """A fake for each, of the shape of the whole; the same one for what is tied."""
    made: dict[Any, Any] = {}
    found = {}
    with fake_mode():
        for name, tensor in tensors.items():
            sharded = isinstance(tensor, _distributed.dtensor_class())
            held = _distributed.shard_of(tensor) if sharded else tensor
            place = (
                _private.storage_key(held.untyped_storage()), held.storage_offset(), held.shape,
                held.stride(), tensor.shape, tensor.dtype,
            )  # fmt: skip
            if place not in made:
                made[place] = torch.empty(tensor.shape, dtype=tensor.dtype)
            found[name] = made[place]
    return found


class Planning:
    """Takes files as they would be written, and notes what belongs there."""

    def __init__(self, folder: Path, fakes: dict[str, FakeTensor]) -> None:
        self.folder = folder
        self.files: list[PlannedFile] = []
        self.others: dict[str, Any] = {}  # JSON
        self._names = {id(fake._fake_storage): name for name, fake in reversed(fakes.items())}
        self._fakes = fakes

    def write(self, tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        sources = {name: self._source(name, tensor) for name, tensor in tensors.items()}
        self.files.append(PlannedFile(path.name, sources, metadata))

    def write_json(self, name: str, content: Any) -> None:
        self.others[name] = content

    def _source(self, name: str, tensor: Any) -> str:
        source = self._names.get(id(getattr(tensor, "_fake_storage", None)))
        if source is None or tensor._fake_meta is not self._fakes[source]._fake_meta:
            raise CheckpointError(
                f"{name} would be merged or split from several tensors by save_pretrained, which "
                "shards cannot be: save the module before it is sharded, or save its shards with "
                "torch.distributed.checkpoint"
            )
        return source


# The files.


class SharedFiles:
    """Files that all ranks write to.

    Args:
        folder: where; all ranks see it.
        tensors: the state dict; each rank has its shards.
        num_threads: that make values; None: ``torch.get_num_threads()``.
    """

    def __init__(
        self, folder: Path, tensors: dict[str, torch.Tensor], num_threads: int | None
    ) -> None:
        self._folder = folder
        self._tensors = tensors
        self._num_threads = num_threads
        self._rank = _distributed.rank_and_world()[0]
        self.advance: Advance | None = None

    @property
    def num_bytes(self) -> int:
        """That this rank writes."""
        return self.num_bytes_of(self._tensors)

    def num_bytes_of(self, names: Any) -> int:
        held = (self._mine(name) for name in names)
        return sum(t.numel() * t.dtype.itemsize for t in held if t is not None)

    def write(self, file: PlannedFile) -> None:
        """Write one, together. All ranks must call this."""
        path = self._folder / file.name
        begun = self._folder / by_first(lambda: self._begin(path, file))
        try:
            by_all(lambda: self._write(path, file, begun))
            by_first(lambda: os.replace(begun, path))
        except BaseException:  # another rank may be gone, too
            if self._rank == 0:
                begun.unlink(missing_ok=True)
            raise

    def _begin(self, path: Path, file: PlannedFile) -> str:
        writer = Writer(path, self._described(file), file.metadata)
        writer.finish()
        return writer.incomplete.name

    def _described(self, file: PlannedFile) -> dict[str, torch.Tensor]:
        """What the file will have, as a whole."""
        with _private.as_eager():
            return {
                name: torch.empty(whole.shape, dtype=whole.dtype, device="meta")
                for name, source in file.sources.items()
                for whole in [self._tensors[source]]
            }

    def _write(self, path: Path, file: PlannedFile, begun: Path) -> None:
        """Write what this rank has."""
        held = {name: self._mine(source) for name, source in file.sources.items()}
        mine = {name: _of_its_own(tensor) for name, tensor in held.items() if tensor is not None}
        if not mine:
            return
        if not begun.exists():
            raise CheckpointError(f"{self._folder} is not a directory that all ranks share")
        parts = {name: part_of(name, self._tensors[file.sources[name]]) for name in mine}
        writer = Writer(path, self._described(file), file.metadata, begun=begun)
        try:
            taker = _AtTheirPlaces(writer, parts, mine)
            write_tensors(taker, mine, num_threads=self._num_threads, advance=self.advance)
        finally:
            writer.finish()

    def _mine(self, name: str) -> torch.Tensor | None:
        """What this rank writes of a tensor: one of those that have the same."""
        tensor = self._tensors[name]
        if not isinstance(tensor, _distributed.dtensor_class()):
            return tensor if self._rank == 0 and tensor.numel() else None
        shard = _distributed.shard_of(tensor)
        if not shard.numel() or not _distributed.is_first_copy(tensor):
            return None
        return shard


def _of_its_own(shard: torch.Tensor) -> torch.Tensor:
    """The same, recorded as a copy if it looks at a small part of what it was cut from, all of
    which would be made for it.
    """
    recorded = recorded_of(shard)
    if recorded is None or recorded.real is not None:
        return shard
    if 2 * shard.numel() * shard.dtype.itemsize > recorded.contents.cell.num_bytes:
        return shard
    with torch.no_grad():
        return shard.detach().clone()


class _AtTheirPlaces:
    """Takes the bytes of shards to where they are in the whole."""

    def __init__(
        self, writer: Writer, parts: dict[str, Part], shards: dict[str, torch.Tensor]
    ) -> None:
        self._writer = writer
        self._parts = parts
        self._itemsizes = {name: shard.dtype.itemsize for name, shard in shards.items()}

    def write(self, name: str, start_bytes: int, values: torch.Tensor) -> None:
        raw: Any = raw_bytes(values).numpy()
        data, done = memoryview(raw), 0
        stop = start_bytes + len(data)
        for place, num_bytes in self._parts[name].runs(start_bytes, stop, self._itemsizes[name]):
            self._writer.write_bytes(name, place, data[done : done + num_bytes])
            done += num_bytes
