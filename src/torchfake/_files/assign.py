"""The values of a checkpoint, matched to the tensors of a module by name, and copied to them.

Input: a checkpoint, and the tensors of a module that get values. Output: the values; for a sharded
tensor, the values of this rank's shard. Invariant: every problem is found before anything is
changed, and raised on all ranks if one rank has it; no rank reads the shards of others.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torchfake._core import memory, source_location
from torchfake._files.load import (
    Entry,
    Source,
    is_distributed,
    open_checkpoint,
    open_distributed,
    unused_entries,
)
from torchfake._files.transformers_checkpoints import (
    converts_checkpoints,
    is_transformers_model,
    read_pretrained,
)
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.externals import MAX_EXTERNAL_BYTES
from torchfake._sharding.local_slices import local_slices_of
from torchfake._sharding.local_tensors import is_or_holds_deferred
from torchfake._sharding.shared_errors import raised_on_all_ranks
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import autograd, dispatcher
from torchfake._torch.distributed import dtensors
from torchfake.errors import CheckpointError, printable


class Value(NamedTuple):
    """A tensor of a module, and the checkpoint entry that its values come from."""

    name: str
    target: torch.Tensor
    entry: Entry
    values: torch.Tensor | None = None  # of this rank's shard
    owns_storage: bool = False  # no other tensor of the module shares the target's memory


def values_for(
    module: torch.nn.Module, checkpoint: Source, chosen: set[int], *, strict: bool
) -> list[Value]:
    """The checkpoint's values for the tensors in `chosen`.

    If some of these tensors are sharded, all ranks that have them must call this.

    Args:
        module: names its tensors as the checkpoint does; entries for tensors of the module that are
            not in `chosen` are ignored.
        checkpoint: what :func:`torchfake._files.load.open_checkpoint` takes, or a directory of
            ``torch.distributed.checkpoint``.
        chosen: ``id()`` of the parameters and buffers that get values.
        strict: raise an error if an entry does not fit, or names no tensor of the module; False:
            warn, and leave the entry out.

    Raises:
        CheckpointError: lists all problems, on this rank or on another.
    """
    state = module.state_dict(keep_vars=True)
    targets = {name: tensor for name, tensor in state.items() if id(tensor) in chosen}
    with raised_on_all_ranks(targets.values()):
        matches = _matches(module, checkpoint, {*state}, targets, strict=strict)
    with raised_on_all_ranks(targets.values()):  # shards of a state dict may have to be exchanged
        values = [_with_values(match, checkpoint) for match in matches]
    uses = Counter(id(_storage_of(t)) for t in {id(t): t for t in state.values()}.values())
    return [v._replace(owns_storage=uses[id(_storage_of(v.target))] == 1) for v in values]


def entries_for(
    module: torch.nn.Module, checkpoint: Source, chosen: set[int], *, strict: bool
) -> dict[int, Entry]:
    """The entries of a checkpoint that this rank alone reads, by the identities of tensors.

    Raises:
        CheckpointError: with all problems.
    """
    state = module.state_dict(keep_vars=True)
    targets = {name: tensor for name, tensor in state.items() if id(tensor) in chosen}
    found = _matches(module, checkpoint, {*state}, targets, strict=strict)
    for match in found:
        if match.entry.dtensor is not None:
            raise CheckpointError(
                f"{match.name} is sharded in the checkpoint, of which one rank sends all: give its "
                "full_tensor()"
            )
    return {id(match.target): match.entry for match in found}


def _storage_of(tensor: Any) -> Any:
    return getattr(dtensors.local_tensor_of(tensor), "_fake_storage", tensor)


# Entries, matched to tensors by name.


def _matches(
    module: torch.nn.Module,
    checkpoint: Source,
    names: set[str],
    targets: dict[str, torch.Tensor],
    *,
    strict: bool,
) -> list[Value]:
    """Match `targets` to the checkpoint's entries that fit them; no values are read."""
    known = names | {name for name, _ in module.named_buffers(remove_duplicate=False)}
    entries = _entries_for(module, checkpoint, known)
    found = [Value(name, t, entries[name]) for name, t in targets.items() if name in entries]
    problems = {match.name: _problem(match) for match in found}
    unknown = sorted(set(entries) - known)
    misfits = [f"{name} {problem}" for name, problem in problems.items() if problem]
    has_nothing = bool(targets) and not found
    if unknown or misfits or has_nothing:
        message = _message(unknown, misfits, has_nothing=has_nothing)
        if strict:
            raise CheckpointError(f"{message}. strict=False loads what fits. Nothing was changed")
        stacklevel = source_location.user_stacklevel()
        warnings.warn(printable(f"{message}: left out"), stacklevel=stacklevel)
    return [match for match in found if not problems[match.name]]


def _entries_for(module: torch.nn.Module, checkpoint: Source, known: set[str]) -> dict[str, Entry]:
    """The entries of the checkpoint, by the module's names."""
    if is_distributed(checkpoint):
        return open_distributed(checkpoint, known)
    entries = open_checkpoint(checkpoint)
    if isinstance(checkpoint, Mapping) or known >= set(entries) or not os.path.isdir(checkpoint):
        return entries
    if not is_transformers_model(module) or not converts_checkpoints(module):
        return entries
    values, unused = read_pretrained(module, checkpoint)
    return {**open_checkpoint(values), **unused_entries(unused)}


def _problem(match: Value) -> str | None:
    """Why an entry cannot be copied to its target; None if it can be."""
    _, target, entry, *_ = match
    if entry.problem is not None:
        return entry.problem
    if torch.nn.parameter.is_lazy(target):
        return "has no shape in the module yet: run a forward pass first"
    if entry.shape != tuple(target.shape):
        return f"is {list(entry.shape)} in the checkpoint and {list(target.shape)} in the module"
    if entry.is_complex and not target.is_complex():
        return f"is complex in the checkpoint and {target.dtype} in the module"
    if entry.dtensor is not None:
        return _sharding_problem(entry.dtensor, target)
    local = dtensors.local_tensor_of(target)
    if not isinstance(local, FakeTensor) and is_or_holds_deferred(local):
        return (
            f"is a {type(local).__name__} in the module: materialize it, then call load_state_dict"
        )
    if any(step == 0 and n > 1 for step, n in zip(local.stride(), local.shape, strict=True)):
        return "is expanded in the module: its elements share memory"
    if local.is_inference() and not isinstance(local, FakeTensor):
        return "is a real inference tensor in the module, which cannot be written"
    return None


def _sharding_problem(dtensor: Any, target: Any) -> str | None:
    """Why a DTensor of a state dict cannot be copied to its target; None if it can be."""
    if not dtensors.is_dtensor(target):
        return "is sharded in the checkpoint and not in the module: give its full_tensor()"
    if dtensor.device_mesh != target.device_mesh:
        return (
            "is sharded over another mesh in the checkpoint: save it with "
            "torch.distributed.checkpoint"
        )
    return None


def _message(unknown: list[str], misfits: list[str], *, has_nothing: bool) -> str:
    parts = []
    if unknown:
        parts.append(f"the module does not have {_listed(unknown)} of the checkpoint")
    if has_nothing:
        parts.append("the two have no name in common (is there a prefix?)")
    if misfits:
        parts.append(f"these do not fit: {_listed(misfits)}")
    return "; ".join(parts)


def _listed(items: list[str]) -> str:
    shown = ", ".join(items[:_MAX_SHOWN])
    return shown if len(items) <= _MAX_SHOWN else f"{shown} and {len(items) - _MAX_SHOWN} more"


_MAX_SHOWN = 20


# Values, read and copied.


def _with_values(match: Value, checkpoint: Source) -> Value:
    """Add the values of this rank's shard to a match. Values are memory-mapped; small ones are
    copied, since the record keeps them for later replays, when the file may be gone.
    """
    try:
        values = _read(match).detach()
    except Exception as error:  # damaged files raise exceptions of any class
        where = "the state dict" if isinstance(checkpoint, Mapping) else os.fspath(checkpoint)
        raise CheckpointError(
            f"{match.name} of {where} cannot be read: {error}. Nothing was changed"
        ) from error
    if match.entry.read_slices is None and values.nbytes <= MAX_EXTERNAL_BYTES:
        with dispatcher.as_eager():
            values = values.clone()
    return match._replace(values=values)


def _read(match: Value) -> torch.Tensor:
    name, target, entry, *_ = match
    if entry.dtensor is not None:
        return dtensors.resharded_as(entry.dtensor, target)
    slices = local_slices_of(name, target)
    with dispatcher.as_eager():
        if entry.read_slices is not None:
            return entry.read_slices(slices)
        return slices.slice_of(entry.read())


def copy(values: list[Value], device: torch.device | None = None) -> None:
    """Copy values to their targets: copies to deferred tensors are recorded, others run at once.

    Args:
        values: see :func:`values_for`. The last of several names of one tensor counts.
        device: where deferred tensors will be materialized; None: where they were recorded.
    """
    with autograd.no_grad():
        for value in {id(value.target): value for value in values}.values():
            assert value.values is not None
            is_new = value.entry.read_slices is not None
            owns_storage = value.owns_storage
            give(value.target, value.values, device, owns_storage=owns_storage, is_new=is_new)


def give(
    target: torch.Tensor,
    values: torch.Tensor,
    device: torch.device | None,
    *,
    owns_storage: bool,
    is_new: bool,
) -> None:
    """Copy the values of this rank's shard to one tensor.

    Args:
        target: deferred, or real.
        values: of its local shape.
        device: where a deferred one will be; None: where it was recorded.
        owns_storage: no other tensor of the module shares its memory.
        is_new: nothing else uses `values`.
    """
    local = dtensors.local_tensor_of(target)
    if not local.numel():
        return
    with autograd.no_grad():
        if owns_storage and local is not target and is_deferred_fake(local):
            _remove_padding(local)
        if not (owns_storage and is_new and _set_memory(local, values, device)):
            local.copy_(values)


def _remove_padding(shard: Any) -> None:
    """Give a shard new memory of exactly its size, so that no padding has to be computed: FSDP2
    pads uneven shards, and pads them again when it needs to.
    """
    if shard._fake_storage.deferred.real is None and not _fills_storage(shard):
        shard.data = torch.empty_like(shard)


def _fills_storage(fake: Any) -> bool:
    """Whether a fake covers its whole storage, contiguously."""
    record, cell = fake._fake_meta, fake._fake_storage.deferred.contents.cell
    in_order: bool = record.is_contiguous and not record.differs_from_memory
    return in_order and not record.offset and bool(record.num_bytes == cell.num_bytes)


def _set_memory(target: torch.Tensor, values: torch.Tensor, device: torch.device | None) -> bool:
    """Make `values`, which nothing else uses, the memory of a deferred tensor, which avoids a copy.
    Returns False, and changes nothing, if this is not possible.
    """
    if not is_deferred_fake(target) or not _fills_storage(target):
        return False
    deferred: DeferredState = target._fake_storage.deferred  # type: ignore[attr-defined]
    where = deferred.contents.cell.device if device is None else device
    if deferred.real is not None or not memory.is_available(where):
        return False
    with dispatcher.as_eager():
        deferred.real = values.to(where, target.dtype).contiguous().untyped_storage()
    return True
