"""The assumption that all unknown values are finite, followed through operators.

Input: an operator, its arguments and its results. Output: an :class:`AssumedFill` as the value of a
result, which answers and lists later questions about the result; or an :class:`UpperBound`.
Invariant: an assumed value never counts as known: no shape and no known value depends on it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from torchfake._core.memory import covers, view_of
from torchfake._core.metadata import Metadata
from torchfake._core.storage import AssumedFill, ConstantFill, Storage, UpperBound
from torchfake._torch import dispatcher
from torchfake._unknown_values import answerers, finiteness

_ASSUMED_OF_UNKNOWN = {
    "aten::isnan": False,
    "aten::isinf": False,
    "aten::isposinf": False,
    "aten::isneginf": False,
}
"""Operators that test whether numbers are infinite or NaN, and the result for unknown numbers."""

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    f"aten::{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
"""Comparisons: with an infinite number or NaN, all finite numbers have the same result."""

_WITH_ITSELF = {"aten::eq": True, "aten::ne": False}
"""What a comparison of finite numbers with themselves gives, by which programs search for NaN."""

_FINDS_OVERFLOW = "aten::_amp_foreach_non_finite_check_and_unscale_"
"""The operator that unscales gradients. Its second argument receives whether one is not finite."""

_FOLLOWED = frozenset(
    f"aten::{name}"
    for name in (
        "any", "all", "max", "min", "amax", "amin", "sum", "mean", "count_nonzero", "logical_not",
        "bitwise_not", "logical_or", "bitwise_or", "logical_and", "bitwise_and", "logical_xor",
        "bitwise_xor", "mul", "add", "eq", "ne", "lt", "le", "gt", "ge", "clone", "_to_copy", "cat",
        "stack",
        "logical_or_", "bitwise_or_", "logical_and_", "bitwise_and_", "add_", "mul_",
        "logical_not_", "bitwise_not_", "copy_",
    )
)  # fmt: skip
"""Operators whose result has equal elements if each of their arguments has."""

_ABSORBING = {
    "aten::logical_or": True, "aten::bitwise_or": True, "aten::logical_or_": True,
    "aten::bitwise_or_": True, "aten::logical_and": False, "aten::bitwise_and": False,
    "aten::logical_and_": False, "aten::bitwise_and_": False, "aten::mul": False,
    "aten::mul_": False,
}  # fmt: skip
"""Operators on booleans and integers, and the value of one argument that decides the result alone:
in a generation loop, a finished sequence stays finished, whatever the other argument is."""


_MONOTONE = frozenset(
    f"aten::{name}"
    for name in (
        "max", "min", "amax", "amin", "sum", "mul", "add", "clone", "_to_copy", "cat", "stack",
        "mul_", "add_",
    )
)  # fmt: skip
"""Operators of ``_FOLLOWED`` that map upper bounds of non-negative arguments to an upper bound."""

_MAX_KNOWN_BYTES = 1024 * 1024
"""The limit that ``_tensor/known_values`` sets for integers."""


_ONE_VALUE_IS_ENOUGH = frozenset(
    {*_ASSUMED_OF_UNKNOWN, *_FOLLOWED, *_ABSORBING, _FINDS_OVERFLOW, "aten::_amp_update_scale_"}
)


def is_known_if_one_is(packet: str) -> bool:
    """Whether the operator's result may have a value although some of its arguments have none."""
    return packet in _ONE_VALUE_IS_ENOUGH


def compares(packet: str) -> bool:
    """Whether the operator's result may be assumed where both arguments are the same tensor."""
    return packet in _WITH_ITSELF


def decides_scale(call: Any) -> bool:
    """Whether `call` updates the gradient scale by an assumed overflow check, which is listed."""
    if call.traits.packet != "aten::_amp_update_scale_":
        return False
    storages = [getattr(t, "_fake_storage", None) for t in call.tensors]
    if any(storage is None or storage.is_unknown for storage in storages):
        return False
    found_inf = call.tensors[2]
    answerers.note(found_inf, call.traits.name, _values(found_inf).item(), "finiteness")
    return True


def fill_of_unknown(call: Any, argument: Metadata, result: Metadata) -> AssumedFill | None:
    """The assumed result of a finiteness test, or the bound of a count, of an unknown argument."""
    packet = call.traits.packet
    number = _ASSUMED_OF_UNKNOWN.get(packet, _compared(call))
    if number is not None:
        return AssumedFill(number, result.dtype, result.num_bytes)
    is_integer = not (result.dtype.is_floating_point or result.dtype.is_complex)
    if argument.dtype != torch.bool or not is_integer or not result.num_bytes:
        return None
    if packet == "aten::_to_copy":
        return UpperBound(1, result.dtype, result.num_bytes)
    if packet in ("aten::sum", "aten::count_nonzero"):
        per_result = math.prod(argument.size) // math.prod(result.size)
        return UpperBound(per_result, result.dtype, result.num_bytes)
    return None


def is_with_itself(call: Any) -> bool:
    """Whether `call` compares a fake with itself."""
    if call.traits.packet not in _WITH_ITSELF or len(call.tensors) != 2:
        return False
    one, other = call.tensors
    storage = getattr(one, "_fake_storage", None)
    is_same = storage is not None and storage is getattr(other, "_fake_storage", None)
    return is_same and one._fake_meta is other._fake_meta


def _compared(call: Any) -> bool | None:
    """What a comparison of any finite number gives; None if that depends on the number."""
    compare = _COMPARISONS.get(call.traits.packet)
    if compare is None:
        return None
    if is_with_itself(call):
        return _WITH_ITSELF[call.traits.packet]
    other: Any = call.args[1] if len(call.args) > 1 else None
    storage = getattr(other, "_fake_storage", None)
    if storage is not None and storage.is_known and other.numel() == 1:
        other = _values(other).item()
    return compare(0.0, other) if isinstance(other, float) and not math.isfinite(other) else None


def may_be_infinite(tensor: Any) -> bool:
    """Whether `tensor` is a fake whose elements are not assumed to be finite."""
    return hasattr(tensor, "_fake_storage") and finiteness.mark_of(tensor) != finiteness.FINITE


def assume(fake: Any, number: bool) -> None:
    """Assume that all elements of `fake` are `number`, if they are unknown."""
    storage: Storage = fake._fake_storage
    if storage.value is None and storage.deferred is None:
        storage.value = AssumedFill(number, fake.dtype, storage.num_bytes)


def follow(call: Any, result: Any) -> bool:
    """Set the assumed, bounded or known value of the result of `call`, and return whether there is
    one. The arguments are not all known.
    """
    packet = call.traits.packet
    if packet == _FINDS_OVERFLOW:
        return _found_no_overflow(call)
    if not _is_whole(result):
        return _mark_parts(call, result)
    source = getattr(call.tensors[0], "_fake_storage", None) if call.tensors else None
    fill: ConstantFill | None = finiteness.result_value(call, result._fake_meta)
    if (
        fill is None
        and source is not None
        and not may_be_infinite(call.tensors[0])
        and source.is_unknown
        and not call.traits.mutated_names
    ):
        fill = fill_of_unknown(call, call.tensors[0]._fake_meta, result._fake_meta)
    if fill is None and packet in _FOLLOWED:
        fill = _absorbed(call, packet, result) or _followed(call, packet, result)
    if fill is not None:
        result._fake_storage.value = fill
    return fill is not None


def _mark_parts(call: Any, result: Any) -> bool:
    """Mark several results, or a partly written storage. Return whether one has a mark."""
    results = result if isinstance(result, (list, tuple)) else [result]
    written = _written(call)
    fakes = [r for r in (*results, *written) if hasattr(r, "_fake_storage")]
    is_written = set(map(id, written))
    values: dict[Any, Any] = {}  # computed once: a mark depends on all arguments, often hundreds
    found = False
    for fake in fakes:
        is_whole = _is_whole(fake) and len(fakes) == len(results)
        key = fake._fake_meta.dtype, is_whole
        if key not in values:
            values[key] = finiteness.result_value(call, fake._fake_meta, is_whole=is_whole)
        value, storage = values[key], fake._fake_storage
        if value is not None:
            storage.value = value._replace(num_bytes=storage.num_bytes)
        elif id(fake) in is_written:
            storage.value = None
        found = found or value is not None
    return found


def _written(call: Any) -> list[Any]:
    names = call.traits.mutated_names
    first = [call.args[i] for i in call.traits.mutated_positions if i < len(call.args)]
    found = [*first, *(call.kwargs[name] for name in names if name in call.kwargs)]
    return [t for item in found for t in (item if isinstance(item, (list, tuple)) else [item])]


def _is_whole(result: Any) -> bool:
    """Whether a result is one fake that covers its storage."""
    storage = getattr(result, "_fake_storage", None)
    return storage is not None and covers(result._fake_meta, storage.num_bytes)


def _found_no_overflow(call: Any) -> bool:
    found_inf = call.args[1]._fake_storage
    if found_inf.value is None or found_inf.num_bytes != call.args[1].dtype.itemsize:
        return False
    number = _values(call.args[1]).item()
    for tensor in call.args[0]:
        tensor._fake_storage.value = None
    found_inf.value = AssumedFill(number, call.args[1].dtype, found_inf.num_bytes)
    return True


def _followed(call: Any, packet: str, result: Any) -> AssumedFill | None:
    """The assumed result of an operator whose arguments are all known or assumed."""
    kinds = finiteness.kinds_of_values(call)
    is_bound = UpperBound in kinds
    if kinds & finiteness.NOT_FOLLOWED or not (is_bound or AssumedFill in kinds):
        return None
    if is_bound and packet not in _MONOTONE:
        return None
    number = _number_of(call, packet, result)
    if number is None or (is_bound and number < 0):
        return None
    kind = UpperBound if is_bound else AssumedFill
    return kind(number, result.dtype, result._fake_storage.num_bytes)


def _number_of(call: Any, packet: str, result: Any) -> Any:
    """The number in all elements of the result, from single elements; None if they differ."""
    with dispatcher.no_interception():
        args = [_one_element(arg) for arg in call.args]
        kwargs = {name: _one_element(arg) for name, arg in call.kwargs.items()}
        kwargs = {n: a for n, a in kwargs.items() if n not in ("device", "pin_memory")}
        made = call.func(*args, **kwargs)
        if not isinstance(made, torch.Tensor) or not made.numel():
            return None
        number = made.flatten()[0].item()
        if not (made == number).all():
            return None
    if packet != "aten::sum":
        return number
    return number * (call.args[0].numel() // max(result.numel(), 1))


def _one_element(arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        return type(arg)(map(_one_element, arg))
    if not hasattr(arg, "_fake_storage"):
        return arg
    value = arg._fake_storage.value
    if not isinstance(value, ConstantFill):
        return _values(arg).clone()
    return torch.full((1,) * arg.dim(), value.number, dtype=arg.dtype, device="cpu")


def _absorbed(call: Any, packet: str, result: Any) -> ConstantFill | None:
    """The value of the result if one argument decides it, whatever the other argument is."""
    absorbing = _ABSORBING.get(packet)
    dtype = result.dtype
    if absorbing is None or dtype.is_floating_point or dtype.is_complex:
        return None
    if packet.startswith("aten::bitwise_or") and dtype != torch.bool:
        return None
    num_bytes = result._fake_storage.num_bytes
    for tensor in call.tensors:
        storage = getattr(tensor, "_fake_storage", None)
        if storage is None or storage.is_unknown or not tensor.numel():
            continue
        if _is_filled(tensor, absorbing) and _covers(tensor, result):
            is_assumed = type(storage.value) is AssumedFill
            kind = AssumedFill if is_assumed else ConstantFill
            if is_assumed or num_bytes <= _MAX_KNOWN_BYTES:
                return kind(int(absorbing), dtype, num_bytes)
    return None


def _covers(tensor: Any, result: Any) -> bool:
    """Whether `tensor`, once broadcast, has an element for each element of `result`."""
    return bool(math.prod(torch.broadcast_shapes(tensor.shape, result.shape)) == result.numel())


def _values(fake: Any) -> torch.Tensor:
    with dispatcher.no_interception():
        return view_of(fake._fake_storage.known_bytes(), fake._fake_meta)


def _is_filled(tensor: Any, number: bool) -> bool:
    """Whether all elements of `tensor` are nonzero (`number` is True) or zero (it is False)."""
    value = tensor._fake_storage.value
    if isinstance(value, ConstantFill):
        return bool(value.number) is number
    with dispatcher.no_interception():
        seen = _values(tensor)
        return bool(seen.all()) if number else not bool(seen.any())
