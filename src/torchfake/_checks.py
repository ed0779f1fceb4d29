"""Arguments that eager refuses and torch's meta kernels let pass.

Enters: a :class:`Call` before it runs, or the parameters of a random fill. Leaves: nothing, or the
error eager would raise. Invariant: what eager accepts is accepted here.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake import _private
from torchfake._call import Args, Call, device_of, written_tensors
from torchfake._tensor import FakeTensor
from torchfake.errors import RealTensorWriteError

aten = torch.ops.aten

_ONE_DTYPE = frozenset(
    {"aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::vdot", "aten::addmm", "aten::addmv",
     "aten::addbmm", "aten::baddbmm", "aten::convolution"}
)  # fmt: skip


def check(call: Call) -> None:
    """Refuse what eager would refuse of this call."""
    if call.plan.written_names:
        _check_written(call)
    if call.plan.packet in _ONE_DTYPE:
        _check_one_dtype(call)
    if call.plan.packet == "aten::sub_":
        _check_no_bools(call)


def _check_written(call: Call) -> None:
    """Nothing real is written, and what is written is where the result is."""
    for tensor in written_tensors(call):
        if not isinstance(tensor, FakeTensor) and not tensor.is_meta:
            raise RealTensorWriteError(
                f"{call.plan.name} would write fake values into a real tensor of shape "
                f"{list(tensor.shape)} and dtype {tensor.dtype}. Write out of place (the result is "
                "a fake), or into its fake twin: torchfake.fake_like(tensor)"
            )
        own = device_of(tensor)
        if not call.plan.mixes_devices and own is not None and own != call.device:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{call.device} and {own}! (when checking the arguments of {call.plan.name})"
            )


def _check_one_dtype(call: Call) -> None:
    """Products do not promote: a half layer refuses a float input."""
    dtypes = list(dict.fromkeys(t.dtype for t in call.tensors))
    if len(dtypes) > 1:
        raise RuntimeError(
            f"{call.plan.name}: mat1 and mat2 must have the same dtype, but got {dtypes[0]} and "
            f"{dtypes[1]}"
        )


def _check_no_bools(call: Call) -> None:
    """Subtraction of bools: torch's meta kernels let it pass in place, or refuse it in other
    words.
    """
    if any(t.dtype == torch.bool for t in call.tensors):
        with _private.nobody_watching():
            call.func(*(_single(arg) for arg in call.args))  # which raises what eager raises


def _single(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return torch.zeros((), dtype=arg.dtype, device="cpu")
    return arg


def check_fill(func: Any, parameters: Args) -> None:
    """The parameters of ``uniform_``, ``normal_``, ``random_`` and ``bernoulli_``."""
    first, second = (*parameters, None, None)[:2]
    if func is aten.normal_.default and second is not None and second < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {second}")
    if func is aten.uniform_.default:
        low, high = first or 0.0, 1.0 if second is None else second
        if low > high:
            raise RuntimeError(
                f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
            )
    if func is getattr(aten.random_, "from") and second is not None and first >= second:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={first} >= to={second}"
        )
    if func is aten.bernoulli_.float and first is not None and not 0 <= first <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={first}")
