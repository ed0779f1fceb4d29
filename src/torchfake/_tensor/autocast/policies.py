"""The policies of autocast: which arguments of a call are cast, and to which dtype.

Input: an operator, its arguments, and a device type for which autocast is on. Output: the call
that is made instead; None to cast inside of the operator. Invariant: only fakes that report this
device type are cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from torchfake._core import modes
from torchfake._core.metadata import Metadata
from torchfake._tensor.autocast import cache
from torchfake._torch import autograd, numerics
from torchfake._torch.contexts import Setting

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Policy = Callable[[Any, Args, Kwargs, str], tuple[Any, Args, Kwargs] | None]


def _lower(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Run in the dtype of autocast."""
    dtype = torch.get_autocast_dtype(device_type)
    return op, *_cast_all(args, kwargs, device_type, dtype)


def _fp32(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Run in float32."""
    return op, *_cast_all(args, kwargs, device_type, torch.float32)


def _set_dtype(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Compute and return float32 by the operator's own `dtype`, unless the caller passed one."""
    position = [argument.name for argument in op._schema.arguments].index("dtype")
    given = args[position] if len(args) > position else kwargs.get("dtype")
    if given is None and _is_eligible(args[0], device_type):
        args, kwargs = args[:position], {**kwargs, "dtype": torch.float32}
    return op, args, kwargs


def _append_dtype(
    op: Any, args: Args, kwargs: Kwargs, device_type: str
) -> tuple[Any, Args, Kwargs]:
    """Run the overload of `norm` that takes a `dtype`, with defaults for arguments left out."""
    dtype = torch.float32 if _is_eligible(args[0], device_type) else args[0].dtype
    defaults = [argument.default_value for argument in op._schema.arguments]
    with_dtype = {
        torch.ops.aten.norm.Scalar: torch.ops.aten.norm.ScalarOpt_dtype,
        torch.ops.aten.norm.ScalarOpt_dim: torch.ops.aten.norm.ScalarOpt_dim_dtype,
    }
    return with_dtype[op], (*args, *defaults[len(args) :]), {**kwargs, "dtype": dtype}


def _promote(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Run in float32 if any argument has that, else in the dtype of autocast."""
    lower = widest = torch.get_autocast_dtype(device_type)
    for tensor in tensors_in(args, kwargs):
        if not _is_eligible(tensor, device_type) or widest is torch.float32:
            continue
        if tensor.dtype not in (lower, torch.float32):
            raise RuntimeError(  # torch's own message: code may look for it
                f"Unexpected floating ScalarType in at::autocast::prioritize: {op} got a tensor of "
                f"{tensor.dtype} under {device_type} autocast with dtype={lower}, which can "
                f"promote only {lower} and torch.float32; cast it first"
            )
        widest = tensor.dtype
    return op, *_cast_all(args, kwargs, device_type, widest)


def _banned(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Raise, as torch does."""
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: "
        "float16 probabilities near 0 and 1 lose their gradients. Leave out the sigmoid before the "
        "loss and use torch.nn.functional.binary_cross_entropy_with_logits or "
        "torch.nn.BCEWithLogitsLoss, which are safe to autocast"
    )


def _half(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Run in float16, whatever the dtype of autocast: recurrent layers of cuDNN."""
    return op, *_cast_all(args, kwargs, device_type, torch.float16)


def _onednn(
    op: Any, args: Args, kwargs: Kwargs, device_type: str
) -> tuple[Any, Args, Kwargs] | None:
    """Run an LSTM in the dtype of autocast where eager runs oneDNN's, whose operator is listed."""
    takes_onednn = numerics.takes_onednn_lstm(*args[:2])
    return _lower(op, args, kwargs, device_type) if takes_onednn else None


def _inside(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Cast inside of the kernel: it calls products that autocast lists."""
    inside = device_type, torch.get_autocast_dtype(device_type)

    def run(*args: Any, **kwargs: Any) -> Any:
        with Setting(_get_inside, _set_inside, inside):
            return op(*args, **kwargs)

    return run, args, kwargs


def _product(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Run in float32 and cast the result: the operator ends in a product that autocast lists."""
    if not _is_eligible(args[0], device_type):
        return op, args, kwargs
    lower = torch.get_autocast_dtype(device_type)

    run, *_ = _inside(op, args, kwargs, device_type)

    def run_and_cast(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs).to(lower)

    return run_and_cast, *_cast_all(args, kwargs, device_type, torch.float32)


_get_inside = partial(getattr, modes.thread, "cast_inside")
_set_inside = partial(setattr, modes.thread, "cast_inside")

POLICY_NAMED: dict[str, Policy] = {
    "lower": _lower,
    "fp32": _fp32,
    "fp32_set_dtype": _set_dtype,
    "fp32_append_dtype": _append_dtype,
    "promote": _promote,
    "banned": _banned,
    "half": _half,
    "onednn": _onednn,
    "product": _product,
    "inside": _inside,
}


# The casts.


def _is_eligible(tensor: torch.Tensor, device_type: str) -> bool:
    """Whether autocast may cast `tensor`.

    A plain meta tensor beside a fake was made by a factory inside a C++ composite, after the mode
    was left (an LSTM's initial state), and counts as being on the fake's device.
    """
    dtype = tensor.dtype
    if not dtype.is_floating_point or dtype is torch.float64:
        return False
    record = metadata_record(tensor)
    own = tensor.device.type if record is None else record.device.type
    return own == device_type or (record is None and own == "meta")


def _cast_all(
    args: Args, kwargs: Kwargs, device_type: str, dtype: torch.dtype
) -> tuple[Args, Kwargs]:
    """The arguments with every eligible tensor in `dtype`, also inside lists.

    Casts are made from the last argument to the first, in the order of C++ compiled by GCC: the
    order of a backward pass depends on it.
    """

    def each(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dtype is dtype or not _is_eligible(value, device_type):
                return value
            return cast(value, dtype, torch.get_autocast_dtype(device_type))
        if isinstance(value, (list, tuple)):
            return [each(item) for item in value]
        return value

    named = [(name, each(value)) for name, value in reversed(kwargs.items())]
    casts = [each(value) for value in reversed(args)]
    return tuple(reversed(casts)), dict(reversed(named))


def cast(tensor: torch.Tensor, dtype: torch.dtype, lower: torch.dtype) -> torch.Tensor:
    """`tensor` in `dtype`; a float32 weight that was cast to the dtype of autocast is cast once."""
    is_cached = (
        dtype is lower
        and tensor.dtype is torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and metadata_record(tensor) is not None
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    )
    return cache.cast(tensor, dtype) if is_cached else tensor.to(dtype)


# Tensors among the arguments.


def metadata_record(tensor: torch.Tensor) -> Metadata | None:
    """The metadata record of a fake, also of one that transforms of ``torch.func`` have wrapped;
    None for any other tensor. (FakeTensor cannot be imported here: its file imports this one.)
    """
    record: Metadata | None = getattr(tensor, "_fake_meta", None)
    if record is None:
        record = getattr(autograd.without_levels(tensor), "_fake_meta", None)
    return record


def tensors_in(args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, torch.Tensor))
