"""One operation that is being run: its arguments, the tensors among them, and its result's device.

Input: an operator and its arguments. Output: a :class:`Call`, and what follows from the arguments
before the operator runs. Invariant: nothing here runs the operator or changes an argument.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import devices, modes
from torchfake._core.schemas import OpTraits, traits_of
from torchfake._core.storage import Storage
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy
from torchfake._torch import kernels

NON_TENSOR_TYPES = frozenset(
    {bool, int, float, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format}
)
"""The types of most arguments that are no tensors."""

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Call:
    """One operation that is being run: its arguments, and the meta tensors that stand for them."""

    __slots__ = (
        "args",
        "device",
        "fakes_by_meta",
        "func",
        "kwargs",
        "storages_by_key",
        "tensors",
        "traits",
    )

    def __init__(self, func: Any, args: Args, kwargs: Kwargs) -> None:
        self.func = func
        self.traits: OpTraits = traits_of(func)
        self.args = args
        self.kwargs = kwargs
        self.tensors = tensors_in(args, kwargs)
        if not self.tensors and _takes_number_as_tensor(func, args):
            self.tensors = [_tensor_of_number(args[0])]
            self.args = (*self.tensors, *args[1:])
        self.device = devices.CPU
        self.fakes_by_meta: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self.storages_by_key: dict[int, Storage] = {}


def tensors_in(args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The tensors among the arguments, lists of tensors opened."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)  # isinstance of a tensor takes ten times as long
        if kind in NON_TENSOR_TYPES:
            continue
        if kind in FAKE_TYPES or isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found


def _takes_number_as_tensor(func: Any, args: Args) -> bool:
    """Whether the first argument is a number and should be a tensor: a tensor that C++ has made of
    a number arrives as that number, where C++ expands it for a zero tensor, for instance.
    """
    if not args or not isinstance(args[0], (bool, int, float, complex)):
        return False
    return str(func._schema.arguments[0].type) == "Tensor"


def _tensor_of_number(number: Any) -> FakeTensor:
    """What C++ made of a number, in the dtype in which it makes that."""
    dtype = {float: torch.float64, complex: torch.complex128}.get(type(number))
    return fake_copy(torch.tensor(number, dtype=dtype, device="cpu"), known=True)


def mutated_arguments(traits: OpTraits, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The arguments that the operator writes, lists opened."""
    if not traits.mutated_names or (
        traits.mutates_if_position is not None and not args[traits.mutates_if_position]
    ):
        return []
    if traits.mutated_positions == (0,) and len(traits.mutated_names) == 1:
        first = args[0] if args else kwargs[traits.mutated_names[0]]
        return [first] if isinstance(first, torch.Tensor) else tensors_in((first,), {})
    found = [args[i] for i in traits.mutated_positions if i < len(args)]
    found.extend(kwargs[name] for name in traits.mutated_names if name in kwargs)
    return tensors_in(tuple(found), {})


def mutated_tensors(call: Call) -> list[torch.Tensor]:
    """The tensors among the arguments of `call` that its operator writes."""
    return mutated_arguments(call.traits, call.args, call.kwargs)


def increment_versions(call: Call) -> None:
    """Increment the versions of the tensors that a foreach operator writes: for these, autograd
    leaves that to the kernel.
    """
    for tensor in mutated_tensors(call):
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def device_of(tensor: torch.Tensor) -> torch.device | None:
    """A tensor's device; None for a plain meta tensor outside a mode, which goes along with any.

    A factory inside a C++ composite made it, on the device of a fake: without a mode, that is the
    device that C++ knows, meta.
    """
    if isinstance(tensor, FakeTensor):
        return tensor._fake_meta.device
    if tensor.is_meta:
        return None if modes.current() is None else devices.META
    return tensor.device


def output_device(call: Call) -> torch.device:
    """The device of the result: the one that is named, else the common one of the arguments."""
    named = call.kwargs.get("device")
    if named is None:
        named = next((a for a in call.args if isinstance(a, torch.device)), None)
    if named is not None:
        return devices.resolve(named)
    if call.traits.mixes_devices and call.tensors:
        return device_of(call.tensors[0]) or devices.CPU
    if call.traits.packet == "aten::embedding" and device_of(call.tensors[0]) == devices.META:
        return devices.META  # C++ compares no devices there, and indices may be anywhere
    return common_device(
        call.traits.name, call.tensors, accepts_cpu_scalars=call.traits.accepts_cpu_scalars
    )


def common_device(
    name: str, tensors: list[torch.Tensor], *, accepts_cpu_scalars: bool = True
) -> torch.device:
    """The one device of `tensors`; with `accepts_cpu_scalars`, 0-dim CPU tensors fit any device."""
    device: torch.device | None = None
    only_scalars = True
    for tensor in tensors:
        own = device_of(tensor)
        if own is None:
            continue
        is_scalar = accepts_cpu_scalars and own.type == "cpu" and tensor.dim() == 0
        if device is None or (only_scalars and own != device):
            device, only_scalars = own, is_scalar
        elif own == device:
            only_scalars = only_scalars and is_scalar
        elif not is_scalar:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {own}! (when checking the arguments of {name})"
            )
    return device or devices.CPU


_EFFICIENT_ATTENTION = "aten::_scaled_dot_product_efficient_attention"
_SEED_AND_OFFSET = 2, 3
_DROPOUT = 5  # the index of the argument


def results_on_cpu(call: Call) -> tuple[int, ...]:
    """The results of an operator on CUDA that are on the CPU, by index: where attention drops, the
    seed is there, by aten/src/ATen/native/transformers/cuda/attention.cu.
    """
    if call.traits.packet != _EFFICIENT_ATTENTION or call.device.type != "cuda":
        return ()
    args = call.args
    dropout_p = args[_DROPOUT] if len(args) > _DROPOUT else call.kwargs.get("dropout_p", 0.0)
    return _SEED_AND_OFFSET if dropout_p or kernels.attention_seed_is_always_on_cpu() else ()
