"""Every private torch API this project leans on, one function each.

Enters: plain arguments. Leaves: what torch answers. Invariant: no other file in src names an
underscored torch attribute outside its own subclass, and tests/test_private.py calls each
function here, so a torch that changed fails there first. Checked on torch 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

disabled_torch_function = torch._C._disabled_torch_function_impl
"""What ``Tensor`` subclasses carry to say that they do not override torch functions."""

no_subclass_functions = torch._C.DisableTorchFunctionSubclass
"""Context: torch functions do not look for overrides on their arguments."""

any_autocast = torch._C._is_any_autocast_enabled
"""True while autocast is on for any device type on this thread."""

builtin_methods = torch._C.TensorBase
"""The C base class whose attributes FakeTensor narrows."""

make_wrapper = torch.Tensor._make_wrapper_subclass
"""``(cls, size, strides, offset, memory_format, dtype, layout, device)``: a tensor of class `cls`
with metadata and no data. Documented only in torch's own subclasses (DTensor, FakeTensor)."""

FAKE_SLOT = torch._C._TorchDispatchModeKey.FAKE


def swap_fake_mode(mode: Any) -> Any:
    """Put `mode` (or None) into this thread's FAKE slot; return what was there.

    The slot is what makes C++ skip CUDA's lazy initialisation when a factory names ``cuda``; it
    also keeps user modes (FlopCounterMode) above ours, wherever they were entered.
    """
    previous = torch._C._unset_dispatch_mode(FAKE_SLOT)
    if mode is not None:
        torch._C._set_dispatch_mode(mode)
    return previous


def current_fake_mode() -> Any:
    """What holds this thread's FAKE slot, or None."""
    return torch._C._get_dispatch_mode(FAKE_SLOT)


def swap_only_lift_cpu(value: bool) -> bool:
    """Whether ``torch.tensor(data, device=...)`` moves its data by a dispatched op; thread-local.

    Without it the copy to ``cuda`` happens inside C++, where no mode can see it.
    """
    previous: bool = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(value)
    return previous


def set_bits(tensor: torch.Tensor, conj: bool, neg: bool) -> None:
    """Mark `tensor` as a lazy conjugate or negative view."""
    if conj:
        torch._C._set_conj(tensor, True)
    if neg:
        torch._C._set_neg(tensor, True)


def set_data(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """``tensor.data = source`` without looking at Python overrides."""
    builtin_methods.data.__set__(tensor, source)  # type: ignore[attr-defined]


def raise_no_cuda() -> None:
    """Raise what torch raises when CUDA is asked for and is not there."""
    torch.cuda._lazy_init()


def storage_key(storage: torch.UntypedStorage) -> int:
    """The address of the C++ storage: two tensors alias if and only if theirs are equal."""
    return int(storage._cdata)


def decomposition_of(func: Any) -> Callable[..., Any] | None:
    """torch's Python decomposition of an operator, where it has one."""
    from torch._decomp import decomposition_table  # slow to import, so only when it is needed

    return decomposition_table.get(func)


def without_override_check(function: types.FunctionType) -> types.FunctionType:
    """The same Python function, blind to overrides on its own arguments.

    ``torch.nn.functional`` functions begin with ``if has_torch_function(...)``. A handler that
    calls one again must get past that check, and still see the calls made inside.
    """
    blind = dict(function.__globals__)
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        if name in blind:
            blind[name] = _no_override
    copy = types.FunctionType(
        function.__code__, blind, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _no_override(*_args: object) -> bool:
    return False


def rejection_samplers() -> frozenset[types.CodeType]:
    """The code of torch's initialisers that draw until every sample is accepted.

    ``trunc_normal_`` became one in torch 2.13 (pytorch/pytorch#174997): it asks
    ``mask.any()`` of its own draws.
    """
    function = getattr(torch.nn.init, "_no_grad_trunc_normal_", None)
    return frozenset([function.__code__]) if function is not None else frozenset()
