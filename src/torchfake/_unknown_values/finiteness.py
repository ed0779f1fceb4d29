"""Which unknown values are not assumed to be finite: marks, followed through operators.

Input: an operator, its arguments. Output: a mark for the storage of the result, or none: then the
numbers of the result are assumed to be finite. Invariant: a mark follows from the metadata, the
numbers and the marks of the arguments, which are in the key of a call, unless all values are known;
a mark is never a value.

A mark comes from infinity or NaN among numbers and known values, from a division by a known zero,
and from an operator that gives one of these for a tensor filled with one number.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterator
from typing import Any

import torch

from torchfake._core.memory import view_of
from torchfake._core.metadata import Metadata
from torchfake._core.storage import (
    AssumedFill,
    ConstantFill,
    LargeFill,
    MaybeNotFinite,
    SharedBytes,
)
from torchfake._torch import dispatcher

FINITE, MASKED, MASK, NOT_FINITE = 0, 1, 2, 4
"""What may be in a tensor: finite numbers; minus infinity at some of its elements; the same at all;
anything. Of several tensors the largest counts; keys of calls have all, which are bits."""

_DIVIDES = frozenset({"div", "remainder", "fmod", "true_divide"})

_NO_VALUES = ("_like", "new_", "empty", "rand")
"""Parts of the names of operators that read no values of their arguments."""

_FILLS = {
    "zeros": 0, "ones": 1, "zero_": 0, "zeros_like": 0, "ones_like": 1, "new_zeros": 0,
    "new_ones": 1,
}  # fmt: skip
_FILLS_WITH = {"full": 1, "fill_": 1, "full_like": 1, "new_full": 2}
"""Operators that fill a tensor with a number, and the position of that."""

_MASKS = frozenset(
    {"masked_fill", "where", "triu", "tril", "cat", "stack", "index_put", "index_fill", "scatter",
     "_index_put_impl", "constant_pad_nd", "copy", "select_scatter", "slice_scatter", "fill",
     "masked_scatter", "index_copy"}
)  # fmt: skip
"""Operators that give some elements of each argument as they are."""

_KEEPS_MASK = frozenset({"add", "clone", "_to_copy", "index", "repeat", "expand_copy", *_MASKS})
"""Operators that give minus infinity, where that is in one argument, and else finite numbers."""

_BOUNDED = frozenset(
    {"softmax", "_softmax", "sigmoid", "tanh", "exp", "relu", "erf", "atan", "_safe_softmax"}
)
"""Operators that give finite numbers for minus infinity, as attention does for what is masked."""

_ORDERS = ("norm", "renorm", "cdist", "pdist", "_pdist_forward", "_cdist_forward", "dist")
"""Names of operators, or their ends, of which an infinite number is an order."""

_ATTENTION = "scaled_dot_product"


def divides(packet: str) -> bool:
    """Whether an operator divides its first argument by the second."""
    return packet.removeprefix("aten::") in _DIVIDES


def mark_of(tensor: Any) -> int:
    """The finiteness mark of `tensor`; a known value is examined."""
    value = tensor._fake_storage.value
    if value is None or tensor._fake_meta.dtype in _INTEGERS:
        return FINITE
    if value.__class__ is ConstantFill:
        number = value.number
        return FINITE if number - number == 0 else mark_of_number(number)
    known = value if value.__class__ is _Bytes else getattr(value, "value", None)
    mark = None if known is None else known.__dict__.get("finiteness")
    return _mark_of_value(value, tensor._fake_meta.dtype) if mark is None else mark


_Bytes = torch.UntypedStorage
_INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def mark_of_divisor(tensor: Any) -> int:
    """The finiteness mark of a divisor: not finite if the divisor has a zero."""
    return NOT_FINITE if _has_zero(tensor) else mark_of(tensor)


def _mark_of_value(value: Any, dtype: torch.dtype) -> int:
    if isinstance(value, LargeFill):
        return mark_of_number(value.number)
    if isinstance(value, MaybeNotFinite):
        return MASKED if value.number == -math.inf else NOT_FINITE
    is_integer = not (dtype.is_floating_point or dtype.is_complex)
    if is_integer or isinstance(value, AssumedFill) or _is_drawn_later(value):
        return FINITE
    known = value.bytes() if isinstance(value, SharedBytes) else value
    with dispatcher.no_interception():
        found = known.__dict__["finiteness"] = _mark_of_bytes(known, dtype)
    return found


def _is_drawn_later(value: Any) -> bool:
    """Whether `value` is an unread draw: draws are finite, and are made in their turn."""
    return isinstance(value, SharedBytes) and value.is_draw and value.value is None


def _mark_of_bytes(known: torch.UntypedStorage, dtype: torch.dtype) -> int:
    length = known.nbytes() // dtype.itemsize
    values = torch.empty(0, dtype=dtype, device="cpu").set_(known, 0, (length,), (1,))
    if values.element_size() == 1:
        values = values.float()  # most kernels do not know floats of 8 bits
    is_finite = values.isfinite()
    if is_finite.all():
        return FINITE
    if values.is_complex() or not (values[~is_finite] == -math.inf).all():
        return NOT_FINITE
    return MASKED if is_finite.any() else MASK


def mark_of_number(number: Any) -> int:
    """The finiteness mark of a number."""
    if isinstance(number, bool) or cmath.isfinite(number):
        return FINITE
    return MASK if number == -math.inf else NOT_FINITE


def _has_zero(divisor: Any) -> bool:
    if isinstance(divisor, (bool, int, float, complex)):
        return not divisor
    storage = getattr(divisor, "_fake_storage", None)
    if storage is None or storage.value is None:
        return False
    value = storage.value
    if isinstance(value, AssumedFill) and not isinstance(value, LargeFill):
        return False
    if isinstance(value, ConstantFill):
        return not value.number
    if _is_drawn_later(value):
        return False
    with dispatcher.no_interception():
        return not view_of(storage.known_bytes(), divisor._fake_meta).all()


def result_value(call: Any, result: Metadata, *, is_whole: bool = True) -> MaybeNotFinite | None:
    """The mark of a result of `call`, or of what it writes; `is_whole`: all of its storage."""
    if not (result.dtype.is_floating_point or result.dtype.is_complex):
        return None
    made = result.dtype, result.num_bytes
    number = _filled_with(call)
    if number is not None and is_whole:
        return LargeFill(number, *made)
    mark = _mark_of_call(call, number, is_whole=is_whole)
    if mark == FINITE:
        return None
    return MaybeNotFinite(-math.inf if mark <= MASK else math.nan, *made)


def _filled_with(call: Any) -> Any:
    """The number that all elements of the result are, if that is known."""
    name = call.traits.packet.removeprefix("aten::")
    if name in _FILLS:
        return _FILLS[name]
    if name in _FILLS_WITH:
        args = call.args
        number = args[_FILLS_WITH[name]] if len(args) > _FILLS_WITH[name] else None
        return number if isinstance(number, (bool, int, float, complex)) else None
    is_elementwise = torch.Tag.pointwise in call.func.tags or name in ("_to_copy", "clone")
    return _computed(call) if is_elementwise else None


def _computed(call: Any) -> Any:
    """The number that an elementwise operator gives for tensors of equal elements."""
    values = [getattr(getattr(t, "_fake_storage", None), "value", None) for t in call.tensors]
    filled = [type(value) in (ConstantFill, LargeFill) for value in values]
    is_large = any(type(value) is LargeFill for value in values)
    if not is_large or not all(filled) or call.traits.is_random or call.traits.is_foreach:
        return None
    with dispatcher.no_interception():
        args = [_one_element(arg) for arg in call.args]
        kwargs = {name: _one_element(arg) for name, arg in call.kwargs.items()}
        kwargs = {n: a for n, a in kwargs.items() if n not in ("device", "pin_memory", "out")}
        try:
            made = call.func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError):
            return None
        return made.flatten()[0].item() if isinstance(made, torch.Tensor) else None


def _one_element(arg: Any) -> Any:
    if not hasattr(arg, "_fake_storage"):
        return arg
    return torch.full((1,), arg._fake_storage.value.number, dtype=arg.dtype, device="cpu")


def _mark_of_call(call: Any, filled_with: Any, *, is_whole: bool) -> int:
    name = call.traits.packet.removeprefix("aten::")
    base = name.removesuffix("_").removeprefix("_foreach_")
    mark = max(map(mark_of_number, _numbers_written(call, base)), default=FINITE)
    tensors = _tensors_read(call, name, is_whole=is_whole)
    mark = max(mark, _mark_of_tensors(tensors))
    divisor = call.args[1] if base in _DIVIDES and len(call.args) > 1 else None
    if divisor is not None and not isinstance(divisor, (list, tuple)) and _has_zero(divisor):
        mark = NOT_FINITE
    if filled_with is not None and mark_of_number(filled_with):
        mark = max(mark, MASKED if filled_with == -math.inf else NOT_FINITE)
    if mark == FINITE or base == "nan_to_num":
        return mark if mark == FINITE or any(_numbers_written(call, base)) else FINITE
    return _through(base, call, mark)


def _through(base: str, call: Any, mark: int) -> int:
    """The finiteness mark of the operator's result, given the mark of its arguments."""
    if base in _MASKS:
        return MASKED if mark <= MASK else mark
    if mark == MASKED and (base in _BOUNDED or _ATTENTION in base):
        return FINITE
    if mark == MASKED and (base in _KEEPS_MASK or _scales(base, call)):
        return MASKED
    return NOT_FINITE


def _scales(base: str, call: Any) -> bool:
    factor = call.args[1] if base in ("mul", "div") else None
    return isinstance(factor, (int, float)) and factor > 0


def _tensors_read(call: Any, name: str, *, is_whole: bool) -> list[Any]:
    if any(part in name for part in _NO_VALUES) or call.traits.returns_uninitialized:
        return []
    is_overwritten = call.traits.overwrites_first and is_whole
    outs = [call.kwargs.get(n) for n in call.traits.mutated_names]
    skipped = [call.args[0]] if is_overwritten and call.args else outs
    return [t for t in call.tensors if not any(t is other for other in skipped)]


_MAX_REAL_BYTES = 64 * 1024
"""Of larger real tensors nothing is looked at."""


def _mark_of_tensors(tensors: list[Any]) -> int:
    fakes = [t for t in tensors if hasattr(t, "_fake_storage")]
    found = max(map(mark_of, fakes), default=FINITE)
    for tensor in tensors:
        is_real = not hasattr(tensor, "_fake_storage") and tensor.device.type == "cpu"
        is_small = tensor.numel() * tensor.element_size() <= _MAX_REAL_BYTES
        if is_real and is_small and tensor.is_floating_point() and tensor.layout is torch.strided:
            with dispatcher.no_interception():
                values = tensor.detach().contiguous()
                found = max(found, _mark_of_bytes(values.untyped_storage(), values.dtype))
    return found


def _numbers_written(call: Any, base: str) -> Iterator[Any]:
    """The numbers among the arguments that may get into the result."""
    if base.endswith(_ORDERS) or call.traits.is_random:
        return
    values = [*call.args, *call.kwargs.values()]
    if base in ("clamp", "hardtanh", "clamp_min", "clamp_max"):  # bounds, open ones
        values = [v for v in values if not isinstance(v, float) or not math.isinf(v)]
    for value in values:
        if isinstance(value, (float, complex)):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (v for v in value if isinstance(v, (float, complex)))
