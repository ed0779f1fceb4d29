"""The public face of deferred initialisation.

Enters: the user. Leaves: modules that are recorded and not computed, and the same modules made
real. Invariant: what is made real has the bits that eager construction would have given it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torchfake import (
    _assign,
    _generators,
    _load,
    _materialize,
    _ranks,
    _record,
    _replay,
    _shards,
    _state,
)
from torchfake._graph import Cell, Deferred
from torchfake._members import (
    Check,
    deferred_among,
    deferred_attributes,
    deferred_shards,
    deferred_tensors,
    is_or_holds_deferred,
    shards_among,
    tensors_of_chosen,
)
from torchfake._metadata import DEFERRED, Storage
from torchfake._progress import progress_bar
from torchfake._tensor import FakeTensor
from torchfake.errors import ChangedValueError, NotDeferredError
from torchfake.fake import fake_mode, tensors_of

_T = TypeVar("_T")
_Tensor = TypeVar("_Tensor", bound=torch.Tensor)
_Module = TypeVar("_Module", bound=torch.nn.Module)


class deferred_mode(fake_mode):
    """A context in which every tensor that is made is fake, and how it is made is recorded.

    As :class:`torchfake.fake_mode` in all else, `fake_cuda` included. When the outermost one is
    left, torch's generators are where eager code would have left them, if all draws can be counted.

    >>> with deferred_mode():
    ...     weight = torch.ones(2, 3)
    >>> materialize_tensor(weight).sum()
    tensor(6.)
    """

    _mark = DEFERRED

    def __enter__(self) -> deferred_mode:
        _state.recording.is_used = True
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        drawn_from = _state.thread.modes[-1].drawn_from
        super().__exit__(*error)
        _record.end_step()
        outer = _state.current()
        if outer is not None and outer.mark:
            outer.drawn_from.update(drawn_from)
        else:
            for generator in drawn_from:
                _generators.settle(generator)


def deferred_init(module_fn: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """What ``module_fn(*args, **kwargs)`` gives, its tensors deferred: no memory, no values yet.

    What is done to such tensors later is recorded too, as long as they are deferred.

    Args:
        module_fn: a module class, or anything that returns modules or tensors.
        *args: for `module_fn`.
        **kwargs: for `module_fn`.

    Raises:
        RecordError: if something cannot be kept until it is done for real.
        TypeError: if `module_fn` is a module already, or cannot be called.

    Source: torchdistx.deferred_init of 2022, whose place this takes.

    >>> layer = deferred_init(torch.nn.Linear, 3, 4)
    >>> is_deferred(layer)
    True
    """
    if isinstance(module_fn, torch.nn.Module) or not callable(module_fn):
        raise TypeError(
            "deferred_init takes what builds a module and its arguments, as in "
            f"deferred_init(torch.nn.Linear, 3, 4), not a {type(module_fn).__name__}"
        )
    with deferred_mode():
        return module_fn(*args, **kwargs)


def is_deferred(obj: torch.Tensor | torch.nn.Module) -> bool:
    """Whether a tensor is deferred, or any parameter or buffer of a module is.

    Raises:
        NotDeferredError: (a ValueError) for anything else.
    """
    if isinstance(obj, torch.Tensor):
        return is_or_holds_deferred(obj)
    if isinstance(obj, torch.nn.Module):
        return any(map(is_or_holds_deferred, tensors_of(obj)))
    raise NotDeferredError(f"is_deferred takes a tensor or a module, not {type(obj).__name__}")


def materialize_tensor(tensor: _Tensor) -> _Tensor:
    """Make a deferred tensor real, in place, and return it: all references to it are real with it.

    A real tensor comes back as it is. Of a DTensor this rank's shard becomes real; all ranks of its
    mesh have to call this.

    Args:
        tensor: of any shape.

    Raises:
        NotDeferredError: (a ValueError) if it is a fake that was not recorded, or no tensor.
        MaterializeError: if torch or another reference forbids it.
        RankMismatchError: if other ranks have recorded something else.
        ReplayError: if what was recorded cannot be done.
    """
    if not isinstance(tensor, torch.Tensor):
        raise NotDeferredError(f"materialize_tensor takes a tensor, not {type(tensor).__name__}")
    members = [("the tensor", tensor)]
    shards = shards_among(members)
    _ranks.check_agreement(shards)
    with _shards.becoming_real(shards):
        _materialize.make_real(deferred_among(members))
    return tensor


def materialize_module(
    module: _Module,
    buffers_only: bool = False,
    check_fn: Check | None = None,
    *,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    checkpoint: _load.Source | None = None,
    strict: bool = True,
    threads: int | None = None,
    progress: bool | None = None,
) -> _Module:
    """Make the deferred parameters and buffers of a module real, in place, and return it.

    What takes long is done on several cores, with the bits of one.

    Args:
        module: with its submodules.
        buffers_only: leave parameters deferred.
        check_fn: ``check_fn(submodule)``: whether the tensors that belong to that submodule itself
            (not to those in it) are made real.
        device: where to, instead of where they were recorded. Draws are those of the device that
            was recorded.
        dtype: what floating tensors are cast to, as ``module.to(dtype)`` would.
        checkpoint: values to take instead of those that were recorded, by the names of
            ``state_dict()``, cast to the module's dtypes: a directory (of safetensors, or of
            ``torch.distributed.checkpoint``), a file (safetensors, or ``torch.save``'s, read with
            ``weights_only=True``), or a state dict. Of what is sharded each rank reads its part.
            What it lacks is replayed, so that it gets the values that eager would have given it.
        strict: whether it is an error if the checkpoint has what the module has not, or in another
            shape; otherwise that is left out, with a warning.
        threads: how many make values; None: ``torch.get_num_threads()``.
        progress: whether to show a bar (needs tqdm); None: if it takes more than two seconds and
            tqdm is there.

    Raises:
        NotDeferredError: (a ValueError) if `module` is no module, or has fakes never recorded.
        MaterializeError: if a tensor cannot become real, by name; nothing has changed then.
        CheckpointError: (a ValueError) if `checkpoint` cannot be read or does not fit; nothing has
            changed then.
        ValueError: if `threads` is less than 1.
        ReplayError: if what was recorded cannot be done. What was made real before stays so, and
            another call goes on from there.

    >>> torch.manual_seed(0) and None
    >>> layer = materialize_module(deferred_init(torch.nn.Linear, 3, 4))
    >>> torch.manual_seed(0) and None
    >>> torch.equal(layer.weight, torch.nn.Linear(3, 4).weight)
    True
    """
    if not isinstance(module, torch.nn.Module):
        raise NotDeferredError(f"materialize_module takes a module, not {type(module).__name__}")
    _replay.check_threads(threads)
    target = None if device is None else _real_device(device)
    which = buffers_only, check_fn
    shards = deferred_shards(module, *which)
    with _materialize.lock, _shards.becoming_real(shards, target):
        chosen = list(deferred_tensors(module, *which))
        if not buffers_only:
            chosen += deferred_attributes(module, check_fn)
        values: list[_assign.Value] = []
        if checkpoint is not None:
            ids = {id(tensor) for _, tensor in tensors_of_chosen(module, *which)}
            values = _assign.values_for(module, checkpoint, ids, strict=strict)
        given = {id(value.target) for value in values}
        _ranks.check_agreement([pair for pair in shards if id(pair[1]) not in given])
        if dtype is not None or values:
            _materialize.check(chosen)  # before anything is cast
        if dtype is not None:
            _cast([fake for _, fake in chosen], dtype)
        if values:
            _assign.copy(values, target)
        num_bytes = sum(fake._fake_meta.num_bytes for _, fake in chosen)
        with progress_bar(num_bytes, progress) as advance:
            _materialize.make_real(chosen, device=target, each=advance, num_threads=threads)
    _shards.tell_fsdp(module)
    return module


def _real_device(device: torch.device | str | int) -> torch.device:
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if named.type == "cuda" and named.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return named


def _cast(fakes: list[FakeTensor], dtype: torch.dtype) -> None:
    with torch.no_grad():
        for fake in fakes:
            own = fake._fake_meta.dtype
            if (own.is_floating_point or own.is_complex) and own != dtype:
                fake.data = fake.detach().to(dtype)


def dematerialize_module(module: _Module, check_fn: Check | None = None) -> _Module:
    """Give back the memory of a module that was materialized: it is deferred again, in place.

    Its values are compared with what the record gives, tensor by tensor, so that another
    materialization has the same bits.

    Args:
        module: with its submodules.
        check_fn: ``check_fn(submodule)``: whether the tensors of that submodule are given back.

    Raises:
        ChangedValueError: (a ValueError) naming the tensor that holds other values than were
            recorded, or was never recorded. Nothing has changed then.
        MaterializeError: if a tensor is sharded, or held by a graph. The same goes.
    """
    with _materialize.lock:
        tensors = tensors_of_chosen(module, check=check_fn)
        real = [(name, t) for name, t in tensors if not isinstance(t, FakeTensor)]
        for name, tensor in real:
            _shards.check_is_whole(name, tensor)
            _materialize.check_can_be_deferred(name, tensor)
            _check_unchanged(name, tensor)
        storages: dict[int, Storage] = {}
        for _, tensor in real:
            _make_deferred(tensor, storages)
    return module


def _check_unchanged(name: str, tensor: torch.Tensor) -> None:
    source = _materialize.source_of(tensor)
    if source is None:
        raise ChangedValueError(
            f"{name} has no record of how it was made: it was never deferred, was given other "
            "memory since, or was loaded from real tensors. Leave it out with check_fn"
        )
    if not _materialize.equals_its_source(tensor, source):
        raise ChangedValueError(
            f"{name} was changed since it was materialized: its values could not be had again. "
            "Save them first (state_dict()), or leave it out with check_fn"
        )


def _make_deferred(tensor: torch.Tensor, storages: dict[int, Storage]) -> None:
    source: Any = _materialize.source_of(tensor)
    storage = storages.get(id(source))
    if storage is None:
        cell: Cell = source.contents.cell
        storage = storages[id(source)] = Storage(cell.num_bytes, cell.device)
        storage.recorded = Deferred(source.contents, source.mark)
    _materialize.make_deferred(tensor, storage)
