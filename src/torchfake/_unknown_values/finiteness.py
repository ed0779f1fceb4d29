"""Marks on unknown values that are not assumed to be finite, followed through operators.

Input: an operator, its arguments. Output: a mark for the storage of the result, or None: then the
numbers of the result are assumed to be finite. Invariant: a mark follows from the metadata, the
numbers and the marks of the arguments, all of which are in the cache key of a call unless all
values are known; a mark is never a value.

Marks come from infinity or NaN in a number or a known value, from a division by a known zero, and
from an operator that computes infinity or NaN from a tensor filled with one number.
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
    ConstantFill,
    LargeFill,
    MaybeNotFinite,
    SharedBytes,
)
from torchfake._torch import dispatcher, subclass

FINITE, MASKED, MASK, NOT_FINITE = 0, 1, 2, 4
"""Marks, by what a tensor may contain: finite numbers alone; minus infinity in some elements, or in
all; any number. The mark of several tensors is the largest one; cache keys contain all, as bits."""

_DIVIDES = frozenset({"div", "floor_divide", "remainder", "fmod", "true_divide"})

_NO_VALUES = ("_like", "new_", "empty", "rand")
"""Parts of the names of operators that read no values of their arguments."""

_FILLS = {
    "zeros": 0, "ones": 1, "zero_": 0, "zeros_like": 0, "ones_like": 1, "new_zeros": 0,
    "new_ones": 1,
}  # fmt: skip
_FILLS_WITH = {"full": 1, "fill_": 1, "full_like": 1, "new_full": 2}
"""Operators that fill a tensor with a number, and the position of that argument."""

_MASKS = frozenset(
    {"masked_fill", "where", "triu", "tril", "cat", "stack", "index_put", "index_fill", "scatter",
     "_index_put_impl", "constant_pad_nd", "copy", "select_scatter", "slice_scatter", "fill",
     "masked_scatter", "index_copy"}
)  # fmt: skip
"""Operators that copy elements of their arguments to the result unchanged."""

_KEEPS_MASK = frozenset({"add", "clone", "_to_copy", "index", "repeat", "expand_copy", *_MASKS})
"""Operators whose result is minus infinity where one argument is, and finite elsewhere."""

_BOUNDED = frozenset(
    {"softmax", "_softmax", "sigmoid", "tanh", "exp", "relu", "erf", "atan", "_safe_softmax"}
)
"""Operators whose result is finite for minus infinity, as attention's is for masked scores."""

_ORDERS = ("norm", "renorm", "cdist", "pdist", "_pdist_forward", "_cdist_forward", "dist")
"""Ends of the names of operators to which an infinite number is the order of a norm."""

_ATTENTION = "scaled_dot_product"


def divides(packet: str) -> bool:
    """Whether an operator divides its first argument by the second."""
    return packet.removeprefix("aten::") in _DIVIDES


def mark_of(tensor: Any) -> int:
    """The finiteness mark of a fake; a known value is examined."""
    value, dtype = tensor._fake_storage.value, tensor._fake_meta.dtype
    if value is None or not (dtype.is_floating_point or dtype.is_complex):
        return FINITE
    if isinstance(value, ConstantFill):
        if type(value) in _FILLED:
            return mark_of_number(value.number)
        if isinstance(value, MaybeNotFinite):
            return MASKED if value.number == -math.inf else NOT_FINITE
        return FINITE
    if _is_drawn_later(value):
        return FINITE
    known = value.bytes() if isinstance(value, SharedBytes) else value
    mark: int | None = known.__dict__.get("finiteness")
    if mark is None:
        with dispatcher.no_interception():
            mark = known.__dict__["finiteness"] = _mark_of_bytes(known, dtype)
    return mark


_FILLED = frozenset({ConstantFill, LargeFill})
"""Values that are one number at all elements, which is no assumption."""

NOT_FOLLOWED = frozenset({type(None), MaybeNotFinite, LargeFill})
"""Values from which no assumption about a result follows: none, and marks."""


def mark_of_divisor(tensor: Any) -> int:
    """The finiteness mark of a divisor: ``NOT_FINITE`` if an element is known to be zero."""
    return NOT_FINITE if _has_zero(tensor) else mark_of(tensor)


def _is_drawn_later(value: Any) -> bool:
    """Whether `value` is a draw not read yet. Draws are finite, so none is read for its mark."""
    return isinstance(value, SharedBytes) and value.is_draw and value.value is None


def _mark_of_bytes(known: torch.UntypedStorage, dtype: torch.dtype) -> int:
    length = known.nbytes() // dtype.itemsize
    values = torch.empty(0, dtype=dtype, device="cpu").set_(known, 0, (length,), (1,))
    if values.element_size() == 1:
        values = values.float()  # most kernels have no 8-bit floats
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
    if isinstance(value, ConstantFill):
        return type(value) in _FILLED and not _elements_of(divisor).all()
    if _is_drawn_later(value):
        return False
    with dispatcher.no_interception():
        return not view_of(storage.known_bytes(), divisor._fake_meta).all()


def result_value(call: Any, result: Metadata, *, is_whole: bool = True) -> MaybeNotFinite | None:
    """The mark of a result or written argument of `call`; `is_whole`: it covers its storage."""
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
    """The number in all elements of the result; None if unknown, or if the elements may differ."""
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
    """The number that an elementwise operator computes from tensors filled with one number each."""
    kinds = kinds_of_values(call)
    is_filled = LargeFill in kinds and kinds <= _FILLED
    if not is_filled or call.traits.is_random or call.traits.is_foreach:
        return None
    with dispatcher.no_interception():
        named = {n: a for n, a in call.kwargs.items() if n not in ("device", "pin_memory", "out")}
        try:
            args = [_elements_of(arg) for arg in call.args]
            kwargs = {name: _elements_of(arg) for name, arg in named.items()}
            made = call.func(*args, **kwargs)
        except RecursionError:
            raise
        except (RuntimeError, NotImplementedError, TypeError):
            return None
        if not isinstance(made, torch.Tensor):
            return None
        first, *others = subclass.builtin_methods.tolist(made.flatten())
        if others == [first] * len(others):
            return first
        return None if made.isfinite().all() else math.nan


def kinds_of_values(call: Any) -> set[type]:
    """The classes of the values of the tensors of a call: NoneType if one has no value."""
    return {type(getattr(getattr(t, "_fake_storage", None), "value", None)) for t in call.tensors}


def _elements_of(arg: Any) -> Any:
    """The elements of a fake whose storage is filled with one number: several if it is viewed in
    another dtype, such as the real and imaginary parts of a complex number.
    """
    if not hasattr(arg, "_fake_storage"):
        return arg
    value = arg._fake_storage.value
    if value.dtype == arg.dtype:
        elements = torch.full((1,), value.number, dtype=value.dtype, device="cpu")
    else:
        filled = torch.full((_PERIOD,), value.number, dtype=value.dtype, device="cpu")
        elements = filled.view(arg.dtype)
    elements = elements.conj() if arg.is_conj() else elements
    return -elements if arg.is_neg() else elements


_PERIOD = 16
"""Elements of one byte that make one of the largest dtype."""


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
    skipped = [call.kwargs.get(n) for n in call.traits.mutated_names]
    if call.traits.overwrites_first and is_whole and call.args:
        skipped = [call.args[0]]
    ids = set(map(id, skipped))
    return [t for t in call.tensors if id(t) not in ids]


_MAX_REAL_BYTES = 64 * 1024
"""The largest real tensor that is examined; larger tensors are assumed to be finite."""


def _mark_of_tensors(tensors: list[Any]) -> int:
    found = FINITE
    for tensor in tensors:
        if hasattr(tensor, "_fake_storage"):
            found = max(found, mark_of(tensor))
            continue
        is_small = tensor.numel() * tensor.element_size() <= _MAX_REAL_BYTES
        is_read = is_small and tensor.device.type == "cpu" and tensor.is_floating_point()
        if is_read and tensor.layout is torch.strided:
            with dispatcher.no_interception():
                values = tensor.detach().contiguous()
                found = max(found, _mark_of_bytes(values.untyped_storage(), values.dtype))
    return found


def _numbers_written(call: Any, base: str) -> Iterator[Any]:
    """The numbers among the arguments that may be written to the result."""
    if base.endswith(_ORDERS) or call.traits.is_random:
        return
    values = [*call.args, *call.kwargs.values()]
    if base in ("clamp", "hardtanh", "clamp_min", "clamp_max"):  # an infinite bound is no bound
        values = [v for v in values if not isinstance(v, float) or not math.isinf(v)]
    for value in values:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, (float, complex)):
                yield item
