"""The public face of deferred initialisation.

Enters: the user. Leaves: modules that are recorded and not computed, and the same modules made
real. Invariant: what is made real has the bits that eager construction would have given it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from torchfake import (
    _generators,
    _load,
    _materialize,
    _private,
    _record,
    _replay,
    _state,
)
from torchfake._graph import Cell, Deferred
from torchfake._metadata import DEFERRED, Storage
from torchfake._progress import progress_bar
from torchfake._tensor import FakeTensor, is_deferred_fake
from torchfake.errors import ChangedValueError, MaterializeError, NotDeferredError
from torchfake.fake import fake_mode, tensors_of

_T = TypeVar("_T")
_Tensor = TypeVar("_Tensor", bound=torch.Tensor)
_Module = TypeVar("_Module", bound=torch.nn.Module)
_Check = Callable[[torch.nn.Module], bool]


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
        return _is_or_holds_deferred(obj)
    if isinstance(obj, torch.nn.Module):
        return any(map(_is_or_holds_deferred, tensors_of(obj)))
    raise NotDeferredError(f"is_deferred takes a tensor or a module, not {type(obj).__name__}")


def _is_or_holds_deferred(tensor: torch.Tensor) -> bool:
    if is_deferred_fake(tensor):
        return True
    return any(_is_or_holds_deferred(inner) for inner in _private.tensors_inside(tensor))


def materialize_tensor(tensor: _Tensor) -> _Tensor:
    """Make a deferred tensor real, in place, and return it: all references to it are real with it.

    A real tensor comes back as it is.

    Args:
        tensor: of any shape.

    Raises:
        NotDeferredError: (a ValueError) if it is a fake that was not recorded, or no tensor.
        MaterializeError: if torch or another reference forbids it.
        ReplayError: if what was recorded cannot be done.
    """
    if not isinstance(tensor, torch.Tensor):
        raise NotDeferredError(f"materialize_tensor takes a tensor, not {type(tensor).__name__}")
    if isinstance(tensor, FakeTensor):
        check_recorded("the tensor", tensor)
        _materialize.make_real([("the tensor", tensor)])
    return tensor


def check_recorded(name: str, fake: FakeTensor) -> None:
    """Refuse a fake that has no record, by name."""
    if not is_deferred_fake(fake):
        raise NotDeferredError(
            f"{name} is fake and was not recorded: it was made in fake_mode(), or computed from a "
            "fake that was. Make it inside deferred_init() or deferred_mode()"
        )


def materialize_module(
    module: _Module,
    buffers_only: bool = False,
    check_fn: Callable[[torch.nn.Module], bool] | None = None,
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
            ``state_dict()``, cast to the module's dtypes: a directory, a file (safetensors, or
            ``torch.save``'s, read with ``weights_only=True``), or a state dict. What it lacks is
            replayed, so that it gets the values that eager would have given it.
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
    with _materialize.lock:
        chosen = list(deferred_tensors(module, buffers_only, check_fn))
        if not buffers_only:
            chosen += deferred_attributes(module, check_fn)
        values: list[_load.Value] = []
        if checkpoint is not None:
            ids = _ids_of_chosen(module, buffers_only, check_fn)
            values = _load.values_for(module, checkpoint, ids, strict=strict)
        if dtype is not None or values:
            _materialize.check(chosen)  # before anything is cast
        if dtype is not None:
            _cast([fake for _, fake in chosen], dtype)
        if values:
            _load.copy(values)
        num_bytes = sum(fake._fake_meta.num_bytes for _, fake in chosen)
        with progress_bar(num_bytes, progress) as advance:
            _materialize.make_real(chosen, device=target, each=advance, num_threads=threads)
    return module


def _ids_of_chosen(
    module: torch.nn.Module, buffers_only: bool, check_fn: _Check | None
) -> set[int]:
    """Of the chosen parameters and buffers, real ones too."""
    chosen: set[int] = set()
    for _, submodule in _chosen(module, check_fn):
        own = [] if buffers_only else list(submodule.parameters(recurse=False))
        chosen.update(map(id, [*own, *submodule.buffers(recurse=False)]))
    return chosen


def _real_device(device: torch.device | str | int) -> torch.device:
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if named.type == "cuda" and named.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return named


def _chosen(module: torch.nn.Module, check: _Check | None) -> Iterator[tuple[str, torch.nn.Module]]:
    """The submodules that `check` is true of, with what the names of their tensors begin with."""
    for path, submodule in module.named_modules():
        if check is None or check(submodule):
            yield f"{path}." if path else "", submodule


def deferred_tensors(
    module: torch.nn.Module,
    buffers_only: bool = False,
    check_fn: Callable[[torch.nn.Module], bool] | None = None,
) -> Iterator[tuple[str, FakeTensor]]:
    """Names and deferred tensors, each once: see :func:`materialize_module`."""
    seen: set[int] = set()
    for prefix, submodule in _chosen(module, check_fn):
        own = [] if buffers_only else list(submodule.named_parameters(recurse=False))
        for name, tensor in [*own, *submodule.named_buffers(recurse=False)]:
            full = prefix + name
            if isinstance(tensor, FakeTensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                check_recorded(full, tensor)
                yield full, tensor
            elif not isinstance(tensor, FakeTensor) and _is_or_holds_deferred(tensor):
                raise MaterializeError(
                    f"{full} is a {type(tensor).__name__} of a deferred tensor, which cannot "
                    "become real in place yet: call materialize_module before it is sharded"
                )


def deferred_attributes(
    module: torch.nn.Module, check_fn: _Check | None = None
) -> list[tuple[str, FakeTensor]]:
    """Deferred tensors that modules hold as plain attributes, in lists and dicts too: tables of
    positions, and what ``weight_norm`` and pruning compute of their parameters.

    The latter have a history, which cannot be made real, and whose graph would keep the parameters
    from becoming real. It is let go; torch's own hooks compute them again in each forward pass.
    """
    found: list[tuple[str, FakeTensor]] = []
    for prefix, submodule in _chosen(module, check_fn):
        _refuse_script(prefix.rstrip("."), submodule)
        for name, value in vars(submodule).items():
            if name not in _OF_MODULES:
                found += [(prefix + name, t) for t in _deferred_inside(value)]
    for full, fake in found:
        if fake.grad_fn is not None:
            _let_go_of_history(full, fake, module)
    return found


_OF_MODULES = frozenset(vars(torch.nn.Module()))


def _deferred_inside(value: Any) -> Iterator[FakeTensor]:
    if isinstance(value, FakeTensor):
        if is_deferred_fake(value):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _deferred_inside(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _deferred_inside(item)


def _let_go_of_history(name: str, fake: FakeTensor, module: torch.nn.Module) -> None:
    owner = module.get_submodule(name.rpartition(".")[0])
    if not owner._forward_pre_hooks:
        warnings.warn(
            f"{name} was computed from parameters, and is real without that history: gradients "
            "will not flow through it. Compute it in forward()",
            stacklevel=4,
        )
    _materialize.forget_history(fake)


def _refuse_script(path: str, module: torch.nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise MaterializeError(
            f"{path or 'the module'} is scripted: C++ holds its tensors, which cannot become real "
            "in place. Call materialize_module before torch.jit.script"
        )


def _cast(fakes: list[FakeTensor], dtype: torch.dtype) -> None:
    with torch.no_grad():
        for fake in fakes:
            own = fake._fake_meta.dtype
            if (own.is_floating_point or own.is_complex) and own != dtype:
                fake.data = fake.detach().to(dtype)


def dematerialize_module(
    module: _Module, check_fn: Callable[[torch.nn.Module], bool] | None = None
) -> _Module:
    """Give back the memory of a module that was materialized: it is deferred again, in place.

    Its values are compared with what the record gives, tensor by tensor, so that another
    materialization has the same bits.

    Args:
        module: with its submodules.
        check_fn: ``check_fn(submodule)``: whether the tensors of that submodule are given back.

    Raises:
        ChangedValueError: (a ValueError) naming the tensor that holds other values than were
            recorded, or was never recorded. Nothing has changed then.
    """
    with _materialize.lock:
        real = list(_all_real(module, check_fn))
        for name, tensor in real:
            _materialize.check_can_be_deferred(name, tensor)
            _check_unchanged(name, tensor)
        storages: dict[int, Storage] = {}
        for _, tensor in real:
            _make_deferred(tensor, storages)
    return module


def _all_real(
    module: torch.nn.Module, check_fn: Callable[[torch.nn.Module], bool] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    for prefix, submodule in _chosen(module, check_fn):
        for name, tensor in [
            *submodule.named_parameters(recurse=False),
            *submodule.named_buffers(recurse=False),
        ]:
            if not isinstance(tensor, FakeTensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                yield prefix + name, tensor


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
