"""One operation that is being run: its arguments, the tensors among them, and its result's device.

Input: an operator and its arguments. Output: a :class:`Call`, and facts that follow from the
arguments before the operator runs. Invariant: nothing here runs an operator or changes an argument.
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
        "metas_by_fake",
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
        self.metas_by_fake: dict[int, torch.Tensor] = {}  # fakes_by_meta keeps the fakes alive
        self.storages_by_key: dict[int, Storage] = {}


def named_arguments(func: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The arguments of a call by the names that the schema of `func` gives them."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def tensors_in(args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The tensors among the arguments and in lists of arguments."""
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
    """Whether the first argument is a number although the schema has a tensor. A tensor that C++
    made from a number may arrive as the number, for example if C++ expands it for a zero tensor.
    """
    if not args or not isinstance(args[0], (bool, int, float, complex)):
        return False
    return str(func._schema.arguments[0].type) == "Tensor"


def _tensor_of_number(number: Any) -> FakeTensor:
    """A fake of the tensor that C++ made from `number`, in the dtype that C++ chooses."""
    dtype = {float: torch.float64, complex: torch.complex128}.get(type(number))
    return fake_copy(torch.tensor(number, dtype=dtype, device="cpu"), known=True)


def mutated_arguments(traits: OpTraits, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The tensors that the operator writes, those in lists of arguments included."""
    if not traits.mutated_names:
        return []
    if traits.mutates_if_position is not None and not args[traits.mutates_if_position]:
        outs = traits.mutated_names[len(traits.mutated_positions) :]  # by keyword alone
        return tensors_in(tuple(kwargs[name] for name in outs if name in kwargs), {})
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
    """Increment the versions of the tensors that an operator writes whose kernel counts writes: a
    foreach operator, or one that a program defines by a kernel in Python.

    Raises:
        RuntimeError: outside of inference mode, if one is an inference tensor.
    """
    for tensor in mutated_tensors(call):
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
        elif not torch.is_inference_mode_enabled():
            raise RuntimeError(
                "Inplace update to inference tensor outside InferenceMode is not allowed.You can "
                "make a clone to get a normal tensor before doing inplace update.See "
                "https://github.com/pytorch/rfcs/pull/17 for more details."
            )


def device_of(tensor: torch.Tensor) -> torch.device | None:
    """A tensor's device; None for a plain meta tensor outside a mode, which fits any device.

    A factory in a C++ composite made such a tensor on the device of a fake. C++ takes this device
    for meta, which only a mode corrects.
    """
    if isinstance(tensor, FakeTensor):
        return tensor._fake_meta.device
    if tensor.is_meta:
        return None if modes.current() is None else devices.META
    return tensor.device


def output_device(call: Call) -> torch.device:
    """The device of the result: the device argument, or else the common device of the tensors."""
    named = call.kwargs.get("device")
    if named is None:
        named = next((a for a in call.args if isinstance(a, torch.device)), None)
    if named is not None:
        return devices.resolve(named)
    if call.traits.mixes_devices and call.tensors:
        return device_of(call.tensors[0]) or devices.CPU
    if call.traits.packet == "aten::embedding" and device_of(call.tensors[0]) == devices.META:
        return devices.META  # C++ does not compare devices: the indices may be on another one
    return common_device(call.traits, call.tensors)


def common_device(traits: OpTraits, tensors: list[torch.Tensor]) -> torch.device:
    """The one device of `tensors`; 0-dim CPU tensors fit any device where the operator takes them.

    Raises:
        RuntimeError: if there are several devices.
    """
    device: torch.device | None = None
    only_scalars = True
    for position, tensor in enumerate(tensors):
        own = device_of(tensor)
        if own is None:
            continue
        is_scalar = tensor.dim() == 0 and (
            (own.type == "cpu" and position not in traits.refuses_numbers_at)
            or _is_read(traits, position, device, own)
        )
        if device is None or (only_scalars and own != device):
            device, only_scalars = own, is_scalar
        elif own == device:
            only_scalars = only_scalars and is_scalar
        elif not is_scalar:
            raise different_devices(traits, device, own)
    return device or devices.CPU


_READ_ON_CUDA = {"aten::masked_fill": (2,), "aten::where": (1, 2)}
_READ_ANYWHERE = {"aten::index_fill": (2,)}
"""Operators that read a number, or copy it, on whatever device it is, and the tensors that may be
this number; on CUDA beside other tensors on CUDA only."""


def _is_read(
    traits: OpTraits, position: int, device: torch.device | None, own: torch.device
) -> bool:
    packet = traits.packet.removesuffix("_")
    if position in _READ_ANYWHERE.get(packet, ()):
        return True
    is_on_cuda = device is not None and device.type == own.type == "cuda"
    return is_on_cuda and position in _READ_ON_CUDA.get(packet, ())


def different_devices(
    traits: OpTraits, one: torch.device | None, other: torch.device | None
) -> RuntimeError:
    """The error of eager for tensors on `one` device and on the `other`, ready to be raised."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{one} and {other}! (when checking the arguments of {traits.name})"
    )


# Operators on lists: element i is treated as the operator on one tensor treats its arguments.

_COPIES = frozenset({"aten::_foreach_copy", "aten::_foreach_copy_"})
_ADD = "aten::_foreach_add"
_FUSED = ("aten::_fused_ad", "aten::_fused_sgd")
_SCALARS = 1  # the dims of a tensor of one number for each element, which stays on the CPU


def check_list_devices(call: Call) -> None:
    """Refuse what CUDA refuses: state on the CPU of parameters on CUDA, as it is after a resume."""
    if call.traits.is_foreach:
        devices_of_results(call)
    elif call.traits.packet.startswith(_FUSED):
        _check_fused(call)


def devices_of_results(call: Call) -> list[torch.device]:
    """The device of each result of a ``_foreach_`` operator.

    Raises:
        RuntimeError: if elements of the same index are on different devices.
    """
    lists = [value for value in call.args if _is_of_tensors(value)]
    if call.traits.packet in _COPIES:
        return [device_of(tensor) or devices.CPU for tensor in lists[0]]
    single = [value for value in call.args if isinstance(value, torch.Tensor)]
    for tensor in single:
        _check_single(call, lists[0], tensor)
    numbers = [tensor for tensor in single if tensor.dim() != _SCALARS]
    return [_of_element(call, [*each, *numbers]) for each in zip(*lists, strict=False)]


def _is_of_tensors(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value)


def _of_element(call: Call, tensors: list[torch.Tensor]) -> torch.device:
    device = common_device(call.traits, tensors)
    own = device_of(tensors[0])
    if call.traits.mutated_names and own is not None and own != device:
        raise different_devices(call.traits, device, own)
    return device


def _check_single(call: Call, tensors: list[torch.Tensor], single: torch.Tensor) -> None:
    """Refuse numbers for each element that are not on the CPU, and a number on another device than
    tensors that are done by one kernel. To multiply, the kernel reads a number on the CPU.
    """
    own, device = device_of(single), device_of(tensors[0])
    if single.dim() == _SCALARS:
        if own != devices.CPU:
            raise RuntimeError(f"Expected scalars to be on CPU, got {own} instead.")
        return
    kinds = {(device_of(tensor), tensor.dtype) for tensor in tensors}
    is_one_kernel = kinds == {(device, single.dtype)}
    is_read = own == devices.CPU and call.traits.packet.removesuffix("_") != _ADD
    if is_one_kernel and own != device and not is_read:
        raise RuntimeError(f"scalar tensor expected to be on {device} but is on {own}")


def _check_fused(call: Call) -> None:
    """Compare all tensors of all lists; the number of steps is left out where only the kernel
    compares, which reads it on either device.
    """
    expected = device_of(call.args[0][0])
    names = [argument.name for argument in call.func._schema.arguments]
    lr = call.kwargs.get("lr")
    for name, tensors in zip(names, call.args, strict=False):
        is_compared = name != "state_steps" or not isinstance(lr, torch.Tensor)
        for tensor in tensors if is_compared else ():
            own = device_of(tensor)
            if own != expected and own is not None:
                raise different_devices(call.traits, expected, own)
    if isinstance(lr, torch.Tensor) and device_of(lr) not in (devices.CPU, expected):
        raise RuntimeError("lr must be on the same GPU device as the params")


_EFFICIENT_ATTENTION = "aten::_scaled_dot_product_efficient_attention"
_SEED_AND_OFFSET = 2, 3
_DROPOUT = 5  # the index of the argument


def results_on_cpu(call: Call) -> tuple[int, ...]:
    """The indices of results that are on the CPU although the operator runs on CUDA: the seed and
    offset of dropout in attention (aten/src/ATen/native/transformers/cuda/attention.cu).
    """
    if call.traits.packet != _EFFICIENT_ATTENTION or call.device.type != "cuda":
        return ()
    args = call.args
    dropout_p = args[_DROPOUT] if len(args) > _DROPOUT else call.kwargs.get("dropout_p", 0.0)
    return _SEED_AND_OFFSET if dropout_p or kernels.attention_seed_is_always_on_cpu() else ()
