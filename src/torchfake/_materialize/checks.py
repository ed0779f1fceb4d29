"""What cannot be materialized in place, refused by name before anything is changed.

Input: a :class:`~torchfake._materialize.collect.Selection`, and the device asked for. Output: the
deferred fakes among it, by name. Invariant: no memory is touched, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchfake._core import memory
from torchfake._materialize.collect import Selection
from torchfake._sharding.local_tensors import LocalTensors, is_or_holds_deferred, local_tensors
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd
from torchfake.errors import MaterializeError

NamedFakes = list[tuple[str, FakeTensor]]


def check_kinds(selection: Selection) -> LocalTensors:
    """The deferred tensors of a selection, on this rank, plain attributes included.

    Raises:
        NotDeferredError: for a fake that was not recorded.
        MaterializeError: for what holds a deferred tensor and is no DTensor, and for scripted
            modules.
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
    """Refuse a parameter that FSDP1 has flattened, without the flat parameter that it views: FSDP
    would go on to make deferred views of that one.
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
    """Refuse fakes that have a history, or a gradient without values, that a graph holds, or whose
    device is not there. Their gradients are materialized with them, and have to pass too.

    Args:
        fakes: deferred, by name.
        device: where they will be; None: where they were recorded.

    Raises:
        MaterializeError: naming the first.
    """
    with autograd.examining():
        for name, tensor in fakes:
            while tensor is not None:
                tensor = _check(name, tensor, device)
                name += ".grad"


def _check(name: str, tensor: torch.Tensor, device: torch.device | None) -> Any:
    """Refuse a tensor for each of these reasons; its gradient, which is next."""
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
    if standing.is_in_live_graph:
        raise _held_by_a_graph(name)
    if device is None and recorded.real is None and not memory.is_available(recorded.cell.device):
        raise MaterializeError(
            f"{name} was recorded on {recorded.cell.device}, which this machine does not "
            "have: pass device='cpu', or another it has"
        )
    return standing.gradient


def check_before_ddp(module: torch.nn.Module) -> None:
    """Refuse a deferred module that DistributedDataParallel is about to wrap: C++ would read the
    memory of its parameters, which is not there.
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, _ in (pair for pair in named if is_or_holds_deferred(pair[1])):
        raise MaterializeError(
            f"DistributedDataParallel was given a deferred module: {name} has no values yet. Call "
            "materialize_module(module) before it is wrapped; all ranks have the same weights then"
        )


def check_no_graph(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that a graph of autograd holds, and would go on to hold as it was."""
    if autograd.is_in_live_graph(tensor):
        raise _held_by_a_graph(name)


def _held_by_a_graph(name: str) -> MaterializeError:
    return MaterializeError(
        f"{name} cannot be materialized in place: the graph of a forward pass holds it. Delete "
        "the outputs of that pass, or run it in torch.no_grad(). If a framework holds it "
        "(DeepSpeed, for its gradients), call materialize_module before it is given the module"
    )
