"""``torch.export`` with torch's own fakes on CUDA, on a machine without CUDA.

Input: code in a context. Output: torch's own fakes on CUDA, usable there; and graphs in which
carriers (see ``_core/devices``) are replaced by the devices they stand for. Invariant: on this
thread, Python sees the CUDA device of such a fake and C++ its carrier, as with torchfake's fakes;
other threads, and all code after the context, see torch unchanged.

Without this, autograd asks the CUDA runtime for a stream of the device, and a build of torch
without CUDA aborts the process.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any

import torch
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake._core import devices
from torchfake._patches.patch import Patch, Patched
from torchfake._torch import dispatcher
from torchfake._torch.compiler import tracer_modes
from torchfake._torch.contexts import Together, holding, shared
from torchfake.errors import TraceError

_DEVICE_OF = torch.ops.prim.device.default
_lock = shared(threading.RLock(), for_whole_calls=True)


def torch_fakes_without_cuda() -> Any:
    """Context in which torch's own fakes can be on CUDA; changes nothing on a machine with CUDA.

    Threads enter one at a time, so that each restores the state it found.
    """
    if torch.cuda.is_available():
        return contextlib.nullcontext()
    if torch.is_autocast_enabled("cuda"):
        raise _autocast_error()
    patches = Patched(_patches(threading.get_ident()))
    return Together(holding(_lock), patches, tracer_modes.in_dispatch_mode(_ConstantsOnCpu()))


def _patches(thread: int) -> list[Patch]:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    patches = [Patch(FakeTensor, name, _always(method)) for name, method in _METHODS.items()]
    for owner in (FakeTensor, FakeTensorMode):
        dispatch = _with_carriers(vars(owner)["__torch_dispatch__"], thread)
        patches.append(Patch(owner, "__torch_dispatch__", _always(dispatch)))
    amp_query = torch.cuda.amp.common.amp_definitely_not_available
    refusal = _refuse_autocast(amp_query, thread)
    return [*patches, Patch(torch.cuda.amp.common, amp_query.__name__, _always(refusal))]


def _always(replacement: Any) -> Any:
    return lambda _original: replacement


def _refuse_autocast(original: Any, thread: int) -> Any:
    """A replacement, raising an error, of the function that ``torch.autocast`` calls first."""

    @functools.wraps(original)
    def replacement() -> Any:
        if threading.get_ident() == thread:
            raise _autocast_error()
        return original()

    return replacement


def _autocast_error() -> TraceError:
    # C++ autocast asks each tensor whether it is on CUDA, and finds it on a carrier.
    return TraceError(
        "Modules on fake CUDA that enable autocast cannot be exported without CUDA. Trace with "
        "make_fx, or export a fake copy on the CPU: "
        'torchfake.fake_like(module, device="cpu")'
    )


class _ConstantsOnCpu(TorchDispatchMode):
    """Context: the proxy mode computes the values of constants on the CPU.

    No fake mode sees these operations.
    """

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether torch.compile goes on in this mode. Otherwise it would skip the function that
        ``torch.cond`` compiles, for good.
        """
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if dispatcher.current_fake_mode() is None:
            args = tuple(_on_cpu(argument) for argument in args)
            kwargs = {name: _on_cpu(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    return devices.CPU if isinstance(value, torch.device) and value.type != "meta" else value


def _with_carriers(original: Any, thread: int) -> Any:
    """``__torch_dispatch__`` of a class or mode that decodes carriers, and reports them to C++."""
    is_of_class = isinstance(original, classmethod)
    inner = original.__func__ if is_of_class else original

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if threading.get_ident() != thread:
            return inner(self, func, types, args, kwargs)
        if func is _DEVICE_OF:
            device = inner(self, func, types, args, kwargs)
            return devices.carrier(device) if device.type == "cuda" else device
        args = tuple(_decoded(argument) for argument in args)
        return inner(self, func, types, args, {k: _decoded(v) for k, v in kwargs.items()})

    return classmethod(dispatch) if is_of_class else dispatch


def _decoded(value: Any) -> Any:
    """The device that a carrier stands for; any other value is returned unchanged."""
    return devices.decode(value) if isinstance(value, torch.device) else value


def decode_graphs(module: torch.nn.Module) -> None:
    """Replace carriers by the devices they stand for, in all graphs of a graph module."""
    for submodule in module.modules():
        if not isinstance(submodule, torch.fx.GraphModule):
            continue
        for node in submodule.graph.nodes:
            node.args = map_aggregate(node.args, _decoded)
            node.kwargs = map_aggregate(node.kwargs, _decoded)
        submodule.recompile()


def _with_index(value: Any) -> Any:
    """``cuda`` as ``cuda:0``: otherwise C++ asks the CUDA runtime for the current device."""
    if isinstance(value, (str, torch.device)) and str(value) == "cuda":
        return torch.device("cuda", 0)
    return value


def _to(fake: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    args = tuple(_with_index(argument) for argument in args)
    return torch.Tensor.to(fake, *args, **{k: _with_index(v) for k, v in kwargs.items()})


def _cuda(fake: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
    device = torch.device("cuda", device) if isinstance(device, int) else device
    return _to(fake, "cuda" if device is None else device, None, *args, **kwargs)


_METHODS: dict[str, Any] = {  # replace methods of torch's fakes that call C++ or the CUDA runtime
    "is_cuda": property(lambda fake: fake.device.type == "cuda"),
    "is_meta": property(lambda fake: fake.device.type == "meta"),
    "get_device": lambda fake: -1 if fake.device.index is None else fake.device.index,
    "to": _to,
    "cuda": _cuda,
}
