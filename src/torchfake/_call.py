"""One operation on its way: its arguments, and the device its result is on.

Enters: an operator and its arguments. Leaves: a :class:`Call`, and what can be said of it before
it runs. Invariant: nothing here runs the operator or changes an argument.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake import _device, _state
from torchfake._metadata import Storage
from torchfake._ops import OpPlan, plan_of
from torchfake._tensor import FakeTensor

ATOMS = frozenset(
    {bool, int, float, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format}
)
"""What most arguments are that are no tensors."""

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Call:
    """One operation on its way: its arguments, and the meta tensors that stand for them."""

    __slots__ = ("args", "by_meta", "by_storage", "device", "func", "kwargs", "plan", "tensors")

    def __init__(self, func: Any, args: Args, kwargs: Kwargs) -> None:
        self.func = func
        self.plan: OpPlan = plan_of(func)
        self.args = args
        self.kwargs = kwargs
        self.tensors = tensors_in(args, kwargs)
        self.device = _device.CPU
        self.by_meta: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self.by_storage: dict[int, Storage] = {}


def tensors_in(args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The tensors among the arguments, lists of tensors opened."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)  # asking whether it is a tensor takes ten times as long
        if kind in ATOMS:
            continue
        if kind is FakeTensor or isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found


def tensors_written(plan: OpPlan, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The arguments that the operator writes, lists opened."""
    if not plan.written_names or (plan.writes_if is not None and not args[plan.writes_if]):
        return []
    if plan.written_positions == (0,) and len(plan.written_names) == 1:
        first = args[0] if args else kwargs[plan.written_names[0]]
        return [first] if isinstance(first, torch.Tensor) else tensors_in((first,), {})
    found = [args[i] for i in plan.written_positions if i < len(args)]
    found.extend(kwargs[name] for name in plan.written_names if name in kwargs)
    return tensors_in(tuple(found), {})


def written_tensors(call: Call) -> list[torch.Tensor]:
    """The same of a call."""
    return tensors_written(call.plan, call.args, call.kwargs)


def count_writes(call: Call) -> None:
    """Count the writes of a foreach operator: autograd leaves that to their kernels."""
    for tensor in written_tensors(call):
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def device_of(tensor: torch.Tensor) -> torch.device | None:
    """A tensor's device; None for a plain meta tensor met outside a mode, which has no say.

    There, a factory inside a C++ composite asked for a fake's device and got a plain meta tensor.
    """
    if isinstance(tensor, FakeTensor):
        return tensor._fake_meta.device
    if tensor.is_meta:
        return None if _state.current() is None else _device.META
    return tensor.device


def output_device(call: Call) -> torch.device:
    """Where the result is: an explicit device, else the arguments' common one."""
    named = call.kwargs.get("device")
    if named is None:
        named = next((a for a in call.args if isinstance(a, torch.device)), None)
    if named is not None:
        return _device.resolve(named)
    if call.plan.mixes_devices and call.tensors:
        return device_of(call.tensors[0]) or _device.CPU
    return common_device(call.plan.name, call.tensors, scalars_mix=call.plan.scalars_mix)


def common_device(
    name: str, tensors: list[torch.Tensor], *, scalars_mix: bool = True
) -> torch.device:
    """The one device of `tensors`; 0-dim CPU tensors go along with any, if `scalars_mix`."""
    device: torch.device | None = None
    only_scalars = True
    for tensor in tensors:
        own = device_of(tensor)
        if own is None:
            continue
        is_scalar = scalars_mix and own.type == "cpu" and tensor.dim() == 0
        if device is None or (only_scalars and own != device):
            device, only_scalars = own, is_scalar
        elif own == device:
            only_scalars = only_scalars and is_scalar
        elif not is_scalar:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {own}! (when checking the arguments of {name})"
            )
    return device or _device.CPU
