"""torch's own fakes of CUDA tensors, on a machine without CUDA.

Enters: a context. Leaves: torch, in which fake CUDA tensors of torch's kind can be computed with.
Invariant: on this thread, Python is told the device of such a tensor and C++ its carrier, as with
torchfake's fakes; other threads and all that comes after see torch as it is.

Without this, autograd asks the CUDA runtime for a stream of the device, and a build of torch
without CUDA aborts the process.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake import _device, _private
from torchfake.errors import TraceError

_ASKS_FOR_DEVICE = torch.ops.prim.device.default
_lock = threading.RLock()


@contextlib.contextmanager
def fake_cuda_in_torch() -> Iterator[None]:
    """Context: see above. Nothing is done where there is CUDA."""
    if torch.cuda.is_available():
        yield
        return
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    thread = threading.get_ident()
    changes: list[tuple[Any, str, Any]]
    changes = [(FakeTensor, name, answer) for name, answer in _ANSWERS.items()]
    for owner in (FakeTensor, FakeTensorMode):
        dispatch = _carrying(vars(owner)["__torch_dispatch__"], thread)
        changes.append((owner, "__torch_dispatch__", dispatch))
    asked = torch.cuda.amp.common.amp_definitely_not_available
    changes.append((torch.cuda.amp.common, asked.__name__, _refusing(asked, thread)))
    if torch.is_autocast_enabled("cuda"):
        raise _no_autocast()
    with _replaced(changes), _ConstantsOnCpu():
        yield


@contextlib.contextmanager
def _replaced(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Context: attributes of classes are others. One thread at a time, so that each finds its own
    when it leaves.
    """
    before: list[tuple[Any, str, Any]] = []
    with _lock:
        try:
            for owner, name, value in changes:
                before.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, value)
            yield
        finally:
            for owner, name, value in reversed(before):
                if value is None:  # it was inherited
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)


def _refusing(original: Any, thread: int) -> Any:
    """For what ``torch.autocast`` asks before it switches on."""

    @functools.wraps(original)
    def replacement() -> Any:
        if threading.get_ident() == thread:
            raise _no_autocast()
        return original()

    return replacement


def _no_autocast() -> TraceError:
    # C++ autocast asks each tensor whether it is on CUDA, and what it is told is a carrier.
    return TraceError(
        "Modules on fake CUDA that switch autocast on cannot be exported without CUDA. Trace with "
        'make_fx, or export the twin on the CPU: torchfake.fake_like(module, device="cpu")'
    )


class _ConstantsOnCpu(TorchDispatchMode):
    """Context: what proxies compute for real, to know the values of constants, is on the CPU.

    It is what no mode of fakes sees.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _private.current_fake_mode() is None:
            args = tuple(_on_cpu(argument) for argument in args)
            kwargs = {name: _on_cpu(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    return _device.CPU if type(value) is torch.device and value.type != "meta" else value


def _carrying(original: Any, thread: int) -> Any:
    """``__torch_dispatch__``, of a class or a mode, that tells C++ carriers and takes them back."""
    is_of_class = isinstance(original, classmethod)
    inner = original.__func__ if is_of_class else original

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if threading.get_ident() != thread:
            return inner(self, func, types, args, kwargs)
        if func is _ASKS_FOR_DEVICE:
            device = inner(self, func, types, args, kwargs)
            return _device.carrier(device) if device.type == "cuda" else device
        args = tuple(decoded(argument) for argument in args)
        return inner(self, func, types, args, {k: decoded(v) for k, v in kwargs.items()})

    return classmethod(dispatch) if is_of_class else dispatch


def decoded(value: Any) -> Any:
    """The device that a carrier stands for; anything else as it is."""
    return _device.decode(value) if type(value) is torch.device else value


def decode_graphs(module: torch.nn.Module) -> None:
    """Write devices for carriers into all graphs of a graph module."""
    for submodule in module.modules():
        for node in submodule.graph.nodes if isinstance(submodule, torch.fx.GraphModule) else ():
            node.args = map_aggregate(node.args, decoded)
            node.kwargs = map_aggregate(node.kwargs, decoded)
        if isinstance(submodule, torch.fx.GraphModule):
            submodule.recompile()


def _with_index(value: Any) -> Any:
    """``cuda`` as ``cuda:0``: C++ would ask CUDA for its current device."""
    if isinstance(value, (str, torch.device)) and str(value) == "cuda":
        return torch.device("cuda", 0)
    return value


def _to(fake: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    args = tuple(_with_index(argument) for argument in args)
    return torch.Tensor.to(fake, *args, **{k: _with_index(v) for k, v in kwargs.items()})


def _cuda(fake: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
    device = torch.device("cuda", device) if isinstance(device, int) else device
    return _to(fake, "cuda" if device is None else device, None, *args, **kwargs)


_ANSWERS: dict[str, Any] = {  # what Python asks C++ for, and C++ the CUDA runtime
    "is_cuda": property(lambda fake: fake.device.type == "cuda"),
    "is_meta": property(lambda fake: fake.device.type == "meta"),
    "get_device": lambda fake: -1 if fake.device.index is None else fake.device.index,
    "to": _to,
    "cuda": _cuda,
}
