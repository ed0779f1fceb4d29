"""Deferred modules, written to files without ever being in memory.

Enters: a module. Leaves: safetensors files and their index, as ``save_pretrained`` writes them.
Invariant: a file that has its name is whole, and the index is written last.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from torchfake import _private, _replay, _transformers
from torchfake import _private_distributed as _distributed
from torchfake import _save_distributed as _shared
from torchfake._digest import digest_of_contents, digest_of_record, digest_of_values, packed
from torchfake._members import check_recorded
from torchfake._progress import progress_bar
from torchfake._safetensors import check_dtypes, incomplete_name, remove_incomplete
from torchfake._save import Advance, recorded_of, write_file
from torchfake._tensor import FakeTensor
from torchfake.errors import CheckpointError, MissingExtraError, NotDeferredError

_INDEX = "model.safetensors.index.json"
_DIGEST = "torchfake_record"
"""The key under which a file's header has the digest of the record behind it."""


def save_materialized(
    module: torch.nn.Module,
    directory: str | os.PathLike[str],
    *,
    max_shard_size: int | str = "5GB",
    threads: int | None = None,
    progress: bool | None = None,
) -> None:
    """Write the values that a deferred module would have to safetensors files, tensor by tensor.

    The module stays as it is. No more is in memory than its largest tensor and 64 MB, and what an
    operation itself needs; of what is drawn and not computed further, a few MB.

    A model of transformers is written by its own ``save_pretrained``, its config included, so that
    ``from_pretrained`` reads it. Of any other module all that ``state_dict()`` has is written, tied
    tensors once, under their first name.

    A call that was interrupted is continued by the same call, from the last whole file on.

    Of a sharded module the same files are written, by all ranks together: each writes what belongs
    to it, at its place. All ranks of the process group have to call this.

    Args:
        module: deferred, in parts or as a whole, or real; sharded or not.
        directory: made, if it is not there; of a sharded module, one that all ranks share.
        max_shard_size: of a file, in bytes, or as in ``"200MB"`` and ``"1GiB"``; a tensor that is
            larger is alone in its file.
        threads: how many make values; None: ``torch.get_num_threads()``.
        progress: whether to show a bar (needs tqdm); None: if it takes more than two seconds.

    Raises:
        NotDeferredError: (a ValueError) if `module` is no module, or has fakes never recorded.
        CheckpointError: (a ValueError) if `directory` holds another model, or a tensor is of a kind
            that such files do not have.
        ValueError: if `threads` is less than 1.
        MissingExtraError: without huggingface_hub, of a module that is not of transformers.
        ReplayError: if what was recorded cannot be done.
        RankMismatchError: if ranks have other tensors than others.
    """
    if not isinstance(module, torch.nn.Module):
        raise NotDeferredError(f"save_materialized takes a module, not {type(module).__name__}")
    _replay.check_threads(threads)
    shard_bytes = _num_bytes_of(max_shard_size)
    folder = Path(directory)
    tensors = _tensors_of(module)
    if _shared.is_sharded(tensors):
        _save_shards(module, tensors, folder, shard_bytes, threads, progress)
        return
    run = _Run(folder, digest_of(tensors), threads)
    run.begin()
    num_bytes = sum(t.nbytes for t in tensors.values())
    with progress_bar(num_bytes, progress, "Writing") as advance:
        run.advance = _locked(advance)
        if _transformers.is_its_model(module):
            _transformers.save_pretrained(module, folder, shard_bytes, run.write)
        else:
            _save_plain(tensors, run, shard_bytes)
    run.remove_others()


def _num_bytes_of(size: int | str) -> int:
    found = re.fullmatch(r"([0-9.]+) *([KMGT]?)(I?)B?", str(size).upper().strip())
    try:
        step = 1024 if found and found[3] else 1000
        num_bytes = int(float(found[1]) * step ** " KMGT".index(found[2] or " ")) if found else 0
    except ValueError:
        num_bytes = 0
    if num_bytes <= 0:
        raise CheckpointError(
            f"max_shard_size is {size!r}: give a number of bytes, or a size such as 200MB or 5GB"
        )
    return num_bytes


def _tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What ``state_dict()`` has, checked."""
    tensors = module.state_dict()
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(
                f"{name} is a {type(tensor).__name__}: safetensors files have tensors alone. Save "
                "it beside them"
            )
        sharded = isinstance(tensor, _distributed.dtensor_class())
        held = _distributed.shard_of(tensor) if sharded else tensor
        if isinstance(held, FakeTensor):
            check_recorded(name, held)
    check_dtypes(tensors)
    return tensors


def _locked(advance: Advance | None) -> Advance | None:
    """The same for several threads."""
    if advance is None:
        return None
    lock = threading.Lock()

    def locked(num_bytes: int) -> None:
        with lock:
            advance(num_bytes)

    return locked


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    """The digest, in hexadecimal digits, of what tensors are or will be, and of their names."""
    return packed([(name, _digest_of(tensor)) for name, tensor in tensors.items()]).hex()


def _digest_of(tensor: torch.Tensor) -> bytes:
    recorded = recorded_of(tensor)
    if recorded is None:
        return digest_of_values(tensor)
    assert isinstance(tensor, FakeTensor)
    return packed(digest_of_contents(recorded.contents), digest_of_record(tensor._fake_meta))


class _Run:
    """One call: where to, and what tells its files from others."""

    def __init__(self, folder: Path, digest: str, threads: int | None) -> None:
        self.folder = folder
        self.digest = digest
        self.threads = threads
        self.advance: Advance | None = None
        self._names: set[str] = set()  # of the files that belong to it

    def begin(self) -> None:
        """Have no index until all is written: files are about to change."""
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError(f"{self.folder} is a file: give a directory")
        self._check_folder()
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_incomplete(self.folder)
        (self.folder / _INDEX).unlink(missing_ok=True)

    def _check_folder(self) -> None:
        """Refuse a directory that holds another model."""
        for path in sorted(self.folder.glob("*.safetensors")):
            if not self._made(_header_of(path)):
                raise CheckpointError(
                    f"{path} is of another model, of another seed, or of this one before it was "
                    "changed or made real: remove it, or give another directory"
                )

    def remove_others(self) -> None:
        """Remove files of this model that a call with another size had made."""
        for path in self.folder.glob("*.safetensors"):
            if path.name not in self._names and self._made(_header_of(path)):
                path.unlink()

    def write(self, tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        """Write a file, unless it is there."""
        if self.is_there(path, set(tensors)):
            if self.advance is not None:
                self.advance(sum(t.nbytes for t in tensors.values()))
            return
        metadata = self.with_digest(metadata)
        write_file(path, tensors, metadata, num_threads=self.threads, advance=self.advance)

    def is_there(self, path: Path, names: set[str]) -> bool:
        """Whether a file of this call, one of its own from now on, is whole already."""
        self._names.add(path.name)
        header = _header_of(path)
        return self._made(header) and set(header) - {"__metadata__"} == names

    def with_digest(self, metadata: dict[str, str]) -> dict[str, str]:
        return {**metadata, _DIGEST: self.digest}

    def write_json(self, name: str, content: Any) -> None:
        self.write_bytes(name, _as_json(content))

    def write_bytes(self, name: str, content: bytes) -> None:
        path = incomplete_name(self.folder / name)
        path.write_bytes(content)
        os.replace(path, self.folder / name)

    def _made(self, header: dict[str, Any]) -> bool:
        """Whether a file with that header is of this call, or one like it."""
        metadata = header.get("__metadata__")
        return isinstance(metadata, dict) and metadata.get(_DIGEST) == self.digest


def _as_json(content: Any) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def _header_of(path: Path) -> dict[str, Any]:
    """The header of a safetensors file; empty if it is none."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, _MAX_HEADER_BYTES)))
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


_MAX_HEADER_BYTES = 100_000_000  # what the library takes


# Of several ranks.


def _save_shards(
    module: torch.nn.Module,
    tensors: dict[str, torch.Tensor],
    folder: Path,
    shard_bytes: int,
    threads: int | None,
    progress: bool | None,
) -> None:
    """What the first rank plans, all of them write."""
    _shared.check_same(tensors)
    run = _Run(folder, _shared.digest_of_shards(tensors, _digest_of), threads)
    files, others = _shared.by_first(lambda: _planned(module, tensors, run, shard_bytes))
    shared = _shared.SharedFiles(folder, tensors, threads)
    is_first = _distributed.rank_and_world()[0] == 0
    with progress_bar(shared.num_bytes, progress if is_first else False, "Writing") as advance:
        shared.advance = _locked(advance)
        for file in files:
            is_there = partial(run.is_there, folder / file.name, set(file.sources))
            if not _shared.by_first(is_there):
                shared.write(file._replace(metadata=run.with_digest(file.metadata)))
            elif shared.advance is not None:
                shared.advance(shared.num_bytes_of(file.sources.values()))
    _shared.by_first(lambda: _finish(run, others))


def _planned(
    module: torch.nn.Module, tensors: dict[str, torch.Tensor], run: _Run, shard_bytes: int
) -> tuple[list[_shared.PlannedFile], dict[str, bytes]]:
    """What goes to which file, and the contents of all that is no file of tensors."""
    run.begin()
    fakes = _shared.stand_ins(tensors)
    if not _transformers.is_its_model(module):
        planning = _shared.Planning(run.folder, fakes)
        _save_plain(dict(fakes), planning, shard_bytes)
        return planning.files, {name: _as_json(each) for name, each in planning.others.items()}
    with tempfile.TemporaryDirectory() as place:
        planning = _shared.Planning(Path(place), fakes)
        its_own: Any = module.save_pretrained
        whole = SimpleNamespace(save_pretrained=partial(its_own, state_dict=dict(fakes)))
        _transformers.save_pretrained(whole, planning.folder, shard_bytes, planning.write)
        paths = sorted(path for path in planning.folder.iterdir() if path.is_file())
        return planning.files, {path.name: path.read_bytes() for path in paths}


def _finish(run: _Run, others: dict[str, bytes]) -> None:
    """Write all else, the index last."""
    for name in sorted(others, key=lambda name: (name.endswith(".index.json"), name)):
        run.write_bytes(name, others[name])
    run.remove_others()


# Any other module.


class _Files(Protocol):
    """Where files are written to, or noted."""

    folder: Path

    def write(
        self, tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]
    ) -> None: ...

    def write_json(self, name: str, content: Any) -> None: ...


def _save_plain(tensors: dict[str, torch.Tensor], run: _Files, shard_bytes: int) -> None:
    kept, dropped = _without_ties(tensors)
    split = _split(kept, shard_bytes)
    for name, names in split.filename_to_tensors.items():
        metadata = {"format": "pt", **{k: v for k, v in dropped.items() if v in names}}
        run.write({n: kept[n] for n in names}, run.folder / name, metadata)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        run.write_json(_INDEX, index)


def _without_ties(
    tensors: dict[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Each tensor once, and the name it has for each that was left out, as
    ``safetensors.torch.save_model`` does.
    """
    first: dict[Any, str] = {}
    dropped = {}
    for name, tensor in tensors.items():
        place = (
            _private.storage_key(tensor.untyped_storage()),
            tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype,
        )  # fmt: skip
        kept = first.setdefault(place, name) if tensor.numel() else name
        if kept != name:
            dropped[name] = kept
    return {name: t for name, t in tensors.items() if name not in dropped}, dropped


def _split(tensors: dict[str, torch.Tensor], shard_bytes: int) -> Any:
    try:
        from huggingface_hub import split_state_dict_into_shards_factory
    except ImportError:
        raise MissingExtraError(
            'save_materialized needs huggingface_hub: pip install "torchfake[files]"'
        ) from None
    return split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
