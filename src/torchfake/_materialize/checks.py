"""What cannot be materialized in place, refused by name before anything is changed.

Input: a :class:`~torchfake._materialize.collect.Selection`, and the device asked for. Output: the
deferred fakes among it, by name. Invariant: no memory is touched, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from torchfake._core import memory
from torchfake._graph.deferred_storage import DeferredState
from torchfake._materialize.collect import Selection
from torchfake._sharding.local_tensors import deferred_fakes, is_or_holds_deferred
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import autograd, subclass
from torchfake.errors import MaterializeError

NamedFakes = list[tuple[str, FakeTensor]]


def check_kinds(selection: Selection) -> NamedFakes:
    """The deferred fakes of a selection, on this rank, plain attributes included.

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
    fakes = list(deferred_fakes(selection.tensors))
    fakes += [(name, fake) for name, fake, _ in selection.attributes]
    _check_flat_parameters(fakes)
    return fakes


def _check_flat_parameters(fakes: NamedFakes) -> None:
    """Refuse parameters that FSDP1 has flattened, without the flat parameter that they view: FSDP
    would go on to make deferred views of that one.
    """
    there = {id(fake._fake_storage) for _, fake in fakes if hasattr(fake, "_is_flat_param")}
    for name, fake in fakes:
        if hasattr(fake, "_fsdp_flattened") and fake.numel() and is_deferred_fake(fake):
            if id(fake._fake_storage) not in there:
                raise MaterializeError(
                    f"{name} is part of an FSDP flat parameter outside this module: call "
                    "materialize_module on the FullyShardedDataParallel wrapper"
                )


def check_can_be_exchanged(
    fakes: Iterable[tuple[str, FakeTensor]], *, device: torch.device | None = None
) -> None:
    """Refuse fakes that have a history, or a gradient without values, that a graph holds, or whose
    device is not there.

    Args:
        fakes: deferred, by name.
        device: where they will be; None: where they were recorded.

    Raises:
        MaterializeError: naming the first.
    """
    with subclass.no_subclass_functions():  # a lazy parameter refuses nearly all
        for name, fake in _with_gradients(fakes):
            _check_no_history(name, fake)
            check_no_graph(name, fake)
            _check_gradient(name, autograd.gradient_of(fake))
            if device is None:
                _check_device_exists(name, fake)


def _with_gradients(
    fakes: Iterable[tuple[str, FakeTensor]],
) -> Iterator[tuple[str, FakeTensor]]:
    """Each fake, then its deferred gradient, which is materialized with it, and that one's."""
    for name, fake in fakes:
        yield name, fake
        grad = autograd.gradient_of(fake)
        if is_deferred_fake(grad):
            yield from _with_gradients([(f"{name}.grad", grad)])  # type: ignore[list-item]


def _check_no_history(name: str, fake: FakeTensor) -> None:
    node = autograd.history_of(fake)
    if node is not None:
        raise MaterializeError(
            f"{name} is the result of {node.name()}, whose autograd history cannot be "
            "materialized. "
            "Materialize what it was computed from and compute it again, or detach() it"
        )


def _check_gradient(name: str, grad: torch.Tensor | None) -> None:
    """Refuse the gradient of a step on plain fakes: it has no values, now or later."""
    if isinstance(grad, FakeTensor) and not is_deferred_fake(grad):
        raise MaterializeError(
            f"{name}.grad is a plain fake, which has no values and would be lost: zero_grad() "
            "first. A backward pass on plain fakes makes such gradients; study those on "
            "torchfake.fake_like(module), a copy"
        )
    if grad is not None:
        _check_gradient(f"{name}.grad", autograd.gradient_of(grad))


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
        raise MaterializeError(
            f"{name} cannot be materialized in place: the graph of a forward pass holds it. Delete "
            "the outputs of that pass, or run it in torch.no_grad(). If a framework holds it "
            "(DeepSpeed, for its gradients), call materialize_module before it is given the module"
        )


def _check_device_exists(name: str, fake: FakeTensor) -> None:
    if not is_deferred_fake(fake):
        return
    recorded = fake._fake_storage.deferred
    assert isinstance(recorded, DeferredState)
    if recorded.real is None and not memory.is_available(recorded.contents.cell.device):
        raise MaterializeError(
            f"{name} was recorded on {recorded.contents.cell.device}, which this machine does not "
            "have: pass device='cpu', or another it has"
        )
