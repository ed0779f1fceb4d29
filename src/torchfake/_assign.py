"""Checkpoints, held against a module.

Enters: a checkpoint, and the tensors of a module by name. Leaves: the values that go to them; of a
sharded tensor, those of this rank's shard. Invariant: all that is wrong is found before anything is
changed, on all ranks if it is wrong on one; and no rank reads what belongs to others.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from torchfake import _memory, _private, _transformers
from torchfake import _private_distributed as _distributed
from torchfake._graph import MAX_EXTERNAL_BYTES, Deferred
from torchfake._load import (
    Entry,
    Source,
    entries_not_read,
    is_distributed,
    open_checkpoint,
    open_distributed,
)
from torchfake._parts import part_of
from torchfake._tensor import FakeTensor, is_deferred_fake
from torchfake.errors import CheckpointError


class Value(NamedTuple):
    """What goes where."""

    name: str
    target: torch.Tensor
    entry: Entry
    read: torch.Tensor | None = None  # what belongs to this rank
    is_alone: bool = False  # no other tensor of the module shares its memory


def values_for(
    module: torch.nn.Module, checkpoint: Source, chosen: set[int], *, strict: bool
) -> list[Value]:
    """What a checkpoint has for the tensors of a module's state that are `chosen`, by identity.

    If some are sharded, all ranks that have them must call this.

    Args:
        module: whose names count; those of its other tensors may be there, and are left alone.
        checkpoint: what :func:`torchfake._load.open_checkpoint` takes, or a directory of
            ``torch.distributed.checkpoint``.
        chosen: identities of parameters and buffers.
        strict: whether it is an error if more is there, or does not fit; otherwise a warning.

    Raises:
        CheckpointError: with all that is wrong, here or on another rank.
    """
    state = module.state_dict(keep_vars=True)
    targets = {name: tensor for name, tensor in state.items() if id(tensor) in chosen}
    with _told_to_others(targets.values()):
        values = _fitting(module, checkpoint, {*state}, targets, strict=strict)
    with _told_to_others(targets.values()):  # shards of a state dict may have to be exchanged
        found = [_with_values(value) for value in values]
    uses = Counter(id(_storage_of(t)) for t in {id(t): t for t in state.values()}.values())
    return [value._replace(is_alone=uses[id(_storage_of(value.target))] == 1) for value in found]


def _storage_of(tensor: Any) -> Any:
    return getattr(_distributed.held_by(tensor), "_fake_storage", tensor)


@contextmanager
def _told_to_others(tensors: Iterable[Any]) -> Iterator[None]:
    """Context whose error is one of all ranks that share these tensors."""
    try:
        yield
    except Exception as error:
        _tell_others(tensors, error)
        raise
    _tell_others(tensors, None)


def _tell_others(tensors: Iterable[Any], error: Exception | None) -> None:
    """Let the ranks that share these tensors know, and hear of theirs."""
    kind = _distributed.dtensor_class()
    meshes = {tensor.device_mesh: None for tensor in tensors if isinstance(tensor, kind)}
    for mesh in filter(_distributed.can_exchange, meshes):
        said = None if error is None else f"{error}" or type(error).__name__
        others = _distributed.exchange(mesh, said).items()
        wrong = [f"rank {rank} says: {text}" for rank, text in others if text is not None]
        if wrong and error is None:
            raise CheckpointError(wrong[0])


def _fitting(
    module: torch.nn.Module,
    checkpoint: Source,
    names: set[str],
    targets: dict[str, torch.Tensor],
    *,
    strict: bool,
) -> list[Value]:
    """What is there for `targets`, if all is well with it."""
    known = names | {name for name, _ in module.named_buffers(remove_duplicate=False)}
    entries = _entries_for(module, checkpoint, known)
    found = [Value(name, t, entries[name]) for name, t in targets.items() if name in entries]
    troubles = {value.name: _trouble(value) for value in found}
    unknown = sorted(set(entries) - known)
    others = [f"{name} {trouble}" for name, trouble in troubles.items() if trouble]
    nothing = bool(targets) and not found
    if unknown or others or nothing:
        text = _complaint(unknown, others, nothing=nothing)
        if strict:
            raise CheckpointError(f"{text}. strict=False takes what fits. Nothing was changed")
        warnings.warn(f"{text}: left out", stacklevel=4)
    return [value for value in found if not troubles[value.name]]


def _entries_for(module: torch.nn.Module, checkpoint: Source, known: set[str]) -> dict[str, Entry]:
    """Those of the checkpoint, by the module's names."""
    if is_distributed(checkpoint):
        return open_distributed(checkpoint, known)
    entries = open_checkpoint(checkpoint)
    if isinstance(checkpoint, Mapping) or known >= set(entries) or not os.path.isdir(checkpoint):
        return entries
    if not _transformers.is_its_model(module) or not _transformers.converts(module):
        return entries
    read, others = _transformers.read_pretrained(module, checkpoint)
    return {**open_checkpoint(read), **entries_not_read(others)}


def _trouble(value: Value) -> str | None:
    """Why an entry cannot go to its target."""
    _, target, entry, *_ = value
    if entry.trouble is not None:
        return entry.trouble
    if torch.nn.parameter.is_lazy(target):
        return "has no shape here yet: run a forward pass first"
    if entry.shape != tuple(target.shape):
        return f"is {list(entry.shape)} there and {list(target.shape)} here"
    if entry.is_complex and not target.is_complex():
        return f"is complex there and {target.dtype} here"
    if entry.sharded is not None:
        return _trouble_of_shards(entry.sharded, target)
    held = _distributed.held_by(target)
    if any(step == 0 and n > 1 for step, n in zip(held.stride(), held.shape, strict=True)):
        return "is expanded here: its elements share memory"
    if held.is_inference() and not isinstance(held, FakeTensor):
        return "is a real inference tensor here, which cannot be written"
    return None


def _trouble_of_shards(sharded: Any, target: Any) -> str | None:
    """Why shards of a state dict do not go to those of their target."""
    if not isinstance(target, _distributed.dtensor_class()):
        return "is sharded there and whole here: give its full_tensor()"
    if sharded.device_mesh != target.device_mesh:
        return "is sharded over another mesh there: save it with torch.distributed.checkpoint"
    return None


def _complaint(unknown: list[str], others: list[str], *, nothing: bool) -> str:
    parts = []
    if unknown:
        parts.append(f"the module does not have {_listed(unknown)} of the checkpoint")
    if nothing:
        parts.append("the two have no name in common (is there a prefix?)")
    if others:
        parts.append(f"these do not fit: {_listed(others)}")
    return "; ".join(parts)


def _listed(items: list[str]) -> str:
    shown = ", ".join(items[:_MAX_SHOWN])
    return shown if len(items) <= _MAX_SHOWN else f"{shown} and {len(items) - _MAX_SHOWN} more"


_MAX_SHOWN = 20


def _with_values(value: Value) -> Value:
    """With what belongs to this rank, mapped; but what the record keeps for another time must not
    go with its file.
    """
    try:
        found = _read(value).detach()
    except Exception as error:  # a file's contents decide
        raise CheckpointError(
            f"{value.name} cannot be read: {error}. Nothing was changed"
        ) from error
    if value.entry.read_part is None and found.nbytes <= MAX_EXTERNAL_BYTES:
        with _private.as_eager():
            found = found.clone()
    return value._replace(read=found)


def _read(value: Value) -> torch.Tensor:
    name, target, entry, *_ = value
    if entry.sharded is not None:
        return _distributed.shard_as(entry.sharded, target)
    part = part_of(name, target)
    with _private.as_eager():
        return part.of(entry.read()) if entry.read_part is None else entry.read_part(part)


def copy(values: list[Value], device: torch.device | None = None) -> None:
    """Write the values: recorded for those that are deferred, at once for those that are real.

    Args:
        values: see :func:`values_for`. Of several names of one tensor the last has its way.
        device: where deferred tensors will be; None: where they were recorded.
    """
    with torch.no_grad():
        for value in {id(value.target): value for value in values}.values():
            held = _distributed.held_by(value.target)
            assert value.read is not None
            if not held.numel():
                continue
            if value.is_alone and held is not value.target and is_deferred_fake(held):
                _leave_padding(held)
            is_new = value.is_alone and value.entry.read_part is not None
            if not (is_new and _become(held, value.read, device)):
                held.copy_(value.read)


def _leave_padding(shard: Any) -> None:
    """Give a shard memory that it fills, so that nothing of what it held has to be made: FSDP2
    keeps uneven ones in memory of an even one, and will again.
    """
    if shard._fake_storage.recorded.real is None and not _fills(shard):
        shard.data = torch.empty_like(shard)


def _fills(fake: Any) -> bool:
    """Whether a fake has all of its memory, in order."""
    record, cell = fake._fake_meta, fake._fake_storage.recorded.contents.cell
    in_order: bool = record.is_in_order and not record.conj and not record.neg
    return in_order and not record.offset and bool(record.num_bytes == cell.num_bytes)


def _become(target: torch.Tensor, value: torch.Tensor, device: torch.device | None) -> bool:
    """Let `value`, which nobody else has, be the memory of a deferred tensor, if it fits: it is not
    there twice then.
    """
    if not is_deferred_fake(target) or not _fills(target):
        return False
    recorded: Deferred = target._fake_storage.recorded  # type: ignore[attr-defined]
    where = recorded.contents.cell.device if device is None else device
    if recorded.real is not None or not _memory.is_there(where):
        return False
    with _private.as_eager():
        recorded.real = value.to(where, target.dtype).contiguous().untyped_storage()
    return True
