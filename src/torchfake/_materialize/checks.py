"""Refusals, by name, of tensors that cannot be materialized in place, before any change.

Input: a :class:`~torchfake._materialize.collect.Selection`, and the device asked for. Output: the
deferred fakes of the selection, by name. Invariant: no memory is touched, and nothing is recorded.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from torchfake._core import memory, source_location
from torchfake._materialize.collect import Left, Selection
from torchfake._sharding.local_tensors import LocalTensors, is_or_holds_deferred, local_tensors
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._torch import autograd
from torchfake.errors import MaterializeError, printable

NamedFakes = list[tuple[str, FakeTensor]]


def check_kinds(selection: Selection) -> LocalTensors:
    """The deferred tensors of a selection, on this rank, plain attributes included.

    Raises:
        NotDeferredError: for a fake that was not recorded.
        MaterializeError: for objects other than DTensors that hold a deferred tensor, and for
            scripted modules.
    """
    for path in selection.scripted:
        raise MaterializeError(
            f"{path or 'the module'} is scripted: C++ holds its tensors, which cannot be "
            "materialized in place. Call materialize_module before torch.jit.script"
        )
    local = local_tensors(selection.tensors)
    for name, fake, _ in selection.attributes:
        local.fakes.append((name, fake))
    for name, fake in local.fakes:
        if hasattr(fake, "_fsdp_flattened") and fake.numel():
            _check_flat_parameter(name, fake, local.fakes)
    return local


def _check_flat_parameter(name: str, part: FakeTensor, fakes: NamedFakes) -> None:
    """Refuse a parameter flattened by FSDP1 without its flat parameter in `fakes`: FSDP would go on
    to make deferred views of the flat parameter.
    """
    flat = {id(fake._fake_storage) for _, fake in fakes if hasattr(fake, "_is_flat_param")}
    if id(part._fake_storage) not in flat:
        raise MaterializeError(
            f"{name} is part of an FSDP flat parameter outside this module: call "
            "materialize_module on the FullyShardedDataParallel wrapper"
        )


def check_can_be_exchanged(
    fakes: Iterable[tuple[str, FakeTensor]], *, device: torch.device | None = None
) -> None:
    """Refuse a fake that has a history, has a gradient without values, is held by a graph, or is on
    a device that does not exist. Gradients are materialized too, and have to pass the same checks.

    Args:
        fakes: deferred, by name.
        device: where to materialize them; None: where they were recorded.

    Raises:
        MaterializeError: naming the first fake that is refused.
    """
    with autograd.examining():
        for name, tensor in fakes:
            while tensor is not None:
                tensor = _check(name, tensor, device)
                name += ".grad"


def _check(name: str, tensor: torch.Tensor, device: torch.device | None) -> Any:
    """Refuse a tensor that cannot be materialized; return its gradient, to be checked next."""
    standing = autograd.standing_of(tensor)
    if not isinstance(tensor, FakeTensor):
        return standing.gradient
    recorded: Any = tensor._fake_storage.deferred
    if recorded is None:
        raise MaterializeError(
            f"{name} is a plain fake, which has no values and would be lost: zero_grad() "
            "first. A backward pass on plain fakes makes such gradients; study those on "
            "torchfake.fake_like(module), a copy"
        )
    if standing.history is not None:
        raise MaterializeError(
            f"{name} is the result of {standing.history.name()}, whose autograd history cannot be "
            "materialized. "
            "Materialize what it was computed from and compute it again, or detach() it"
        )
    if standing.is_in_live_graph and _is_held_after_collection(tensor):
        raise _held_by_a_graph(name)
    if device is None and recorded.real is None and not memory.is_available(recorded.cell.device):
        raise MaterializeError(
            f"{name} was recorded on {recorded.cell.device}, which this machine does not "
            "have: pass device='cpu', or another it has"
        )
    return standing.gradient


_WHY_LEFT: dict[type, str] = {
    FakeTensor: "attributes of the module, or of classes that it uses, hold fakes that were never "
    "recorded, and stay fake: they were made in fake_mode(), or computed from such fakes. Make "
    "them inside deferred_init() or deferred_mode(), or again",
    FakeUntypedStorage: "storages of fakes stay fake. Get them again: tensor.untyped_storage()",
    torch.nn.Module: "held by a class, not by this module, other modules stay fake. If this module "
    "uses them, call materialize_module on each",
}


def warn_of_left(left: Iterable[Left]) -> None:
    """Name what stays fake, in one warning."""
    names: dict[type, dict[str, None]] = {}
    for name, kind in left:
        names.setdefault(kind, {})[printable(name)] = None
    told = [f"{', '.join(names[kind])}: {why}" for kind, why in _WHY_LEFT.items() if kind in names]
    if told:
        warnings.warn(". ".join(told), stacklevel=source_location.user_stacklevel())


def check_before_ddp(module: torch.nn.Module) -> None:
    """Refuse a deferred module that DistributedDataParallel is about to wrap: C++ would read the
    memory of its parameters, which does not exist.
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, _ in (pair for pair in named if is_or_holds_deferred(pair[1])):
        raise MaterializeError(
            f"DistributedDataParallel was given a deferred module: {name} has no values yet. Call "
            "materialize_module(module) before it is wrapped; all ranks have the same weights then"
        )


def check_no_graph(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor in a live autograd graph, which would keep the unmaterialized tensor."""
    if autograd.is_in_live_graph(tensor) and _is_held_after_collection(tensor):
        raise _held_by_a_graph(name)


def _is_held_after_collection(tensor: torch.Tensor) -> bool:
    """Whether a graph holds a tensor when reference cycles are freed, which may hold the graph."""
    gc.collect()
    return autograd.is_in_live_graph(tensor)


def _held_by_a_graph(name: str) -> MaterializeError:
    return MaterializeError(
        f"{name} cannot be materialized in place: the graph of a forward pass holds it. Delete "
        "the outputs of that pass, or run it in torch.no_grad(). If a framework holds it "
        "(DeepSpeed, for its gradients), call materialize_module before it is given the module"
    )
