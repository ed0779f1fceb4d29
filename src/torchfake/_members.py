"""The tensors of a module that are to become real.

Enters: a module, and which of its submodules. Leaves: its deferred tensors by name, each once; of a
sharded parameter, its shard. Invariant: what cannot become real in place is refused, by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchfake import _materialize, _private
from torchfake import _private_distributed as _distributed
from torchfake._tensor import FakeTensor, is_deferred_fake
from torchfake.errors import MaterializeError, NotDeferredError

Check = Callable[[torch.nn.Module], bool]


def check_recorded(name: str, fake: FakeTensor) -> None:
    """Refuse a fake that has no record, by name."""
    if not is_deferred_fake(fake):
        raise NotDeferredError(
            f"{name} is fake and was not recorded: it was made in fake_mode(), or computed from a "
            "fake that was. Make it inside deferred_init() or deferred_mode()"
        )


def is_or_holds_deferred(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is deferred, or a wrapper of one that is."""
    if is_deferred_fake(tensor):
        return True
    return any(is_or_holds_deferred(inner) for inner in _private.tensors_inside(tensor))


def tensors_of_chosen(
    module: torch.nn.Module, buffers_only: bool = False, check: Check | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and parameters and buffers, each once, of the submodules that `check` is true of."""
    seen: set[int] = set()
    for prefix, submodule in _chosen(module, check):
        own = [] if buffers_only else list(submodule.named_parameters(recurse=False))
        for name, tensor in [*own, *submodule.named_buffers(recurse=False)]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield prefix + name, tensor


def _chosen(module: torch.nn.Module, check: Check | None) -> Iterator[tuple[str, torch.nn.Module]]:
    """The submodules that `check` is true of, with what the names of their tensors begin with."""
    for path, submodule in module.named_modules():
        if check is None or check(submodule):
            yield f"{path}." if path else "", submodule


def deferred_tensors(
    module: torch.nn.Module, buffers_only: bool = False, check: Check | None = None
) -> Iterator[tuple[str, FakeTensor]]:
    """Names and deferred parameters and buffers; of those that are sharded, the shards."""
    return deferred_among(tensors_of_chosen(module, buffers_only, check))


def deferred_among(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, FakeTensor]]:
    """Those that are deferred, of sharded ones the shards.

    Raises:
        MaterializeError: for what holds a deferred tensor and is no DTensor.
    """
    for name, tensor in named:
        held = _distributed.shard_of(tensor) if _is_sharded(tensor) else tensor
        if isinstance(held, FakeTensor):
            check_recorded(name, held)
            yield name, held
        elif is_or_holds_deferred(held):
            raise MaterializeError(
                f"{name} is a {type(held).__name__} of a deferred tensor, which cannot become real "
                "in place: call materialize_module before it is wrapped"
            )


def deferred_shards(
    module: torch.nn.Module, buffers_only: bool = False, check: Check | None = None
) -> list[tuple[str, torch.Tensor]]:
    """Names and parameters and buffers that are DTensors of deferred shards."""
    return shards_among(tensors_of_chosen(module, buffers_only, check))


def shards_among(named: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Those that are DTensors of deferred shards."""
    return [
        (name, tensor)
        for name, tensor in named
        if _is_sharded(tensor) and is_deferred_fake(_distributed.shard_of(tensor))
    ]


def _is_sharded(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, _distributed.dtensor_class())


def deferred_attributes(
    module: torch.nn.Module, check: Check | None = None
) -> list[tuple[str, FakeTensor]]:
    """Deferred tensors that modules hold as plain attributes, in lists and dicts too: tables of
    positions, and what ``weight_norm`` and pruning compute of their parameters.

    The latter have a history, which cannot be made real, and whose graph would keep the parameters
    from becoming real. It is let go; torch's own hooks compute them again in each forward pass.
    """
    found: list[tuple[str, FakeTensor]] = []
    for prefix, submodule in _chosen(module, check):
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
