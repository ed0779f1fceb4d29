"""Recipes of calls on sizes that did not occur yet, which follow from calls on other sizes.

Input: a call that has no recipe: of a factory that is given a size and fills it with nothing or one
number, or of an operator that fills one whole tensor in place. Output: its recipe, if it follows.
Invariant: it follows only from two calls that were learned from, of which the recipe of the second
follows from the first; and only where the size decides neither whether the call fails nor whether a
value is kept.

Every architecture has weights of other sizes: their memory and their first fills are half of what
is not in the cache when a model is built for the first time.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch

from torchfake._cache.recipes import ArgumentPath, ArgumentResult, NewResult, Recipe
from torchfake._core import devices
from torchfake._core.metadata import Metadata, contiguous_stride, intern
from torchfake._operators import random_values
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends

aten = torch.ops.aten

_FACTORIES = {
    id(func): func
    for func in (aten.empty.memory_format, aten.zeros.default, aten.ones.default, aten.full.default)
}
_DRAWS = {id(func): func for func in (aten.uniform_.default, aten.normal_.default)}
_FILLS = _DRAWS | {id(func): func for func in (aten.fill_.Scalar, aten.zero_.default)}
"""By identity: an operator's own hash is a Python call."""

_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_MAX_BYTES = 1 << 62
_LARGEST_NUMBER = 1e4
"""A number up to this one is a number of these dtypes."""

_MAX_FAMILIES = 4096


class _Family:
    """Calls that differ in size alone: the last of them that was learned from."""

    __slots__ = ("is_confirmed", "is_contradicted", "recipe")

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.is_confirmed = False  # by a second call
        self.is_contradicted = False


class Member(NamedTuple):
    """A call of a family."""

    key: Any  # all that it has in common with the others
    record: Metadata  # of what is made or filled


_families: dict[Any, _Family] = {}


def clear() -> None:
    """Forget all families."""
    _families.clear()


def member(func: Any, args: Args, kwargs: Kwargs) -> Member | None:
    """The call as one of a family; None for a call that is of none."""
    if id(func) in _FACTORIES:
        return _factory(func, args, kwargs)
    return _fill(func, args, kwargs) if id(func) in _FILLS else None


def follow(call: Member) -> Recipe | None:
    """The recipe of a call that was not learned from; None if it does not follow."""
    family = _families.get(call.key)
    if family is None or not family.is_confirmed or family.is_contradicted:
        return None
    return _on(call.record, family.recipe, call.key)


def note(call: Member, recipe: Recipe) -> bool:
    """Note what was learned from a call. False if something else had followed."""
    if len(_families) >= _MAX_FAMILIES:
        _families.clear()
    family = _families.setdefault(call.key, _Family(recipe))
    if family.recipe is recipe:
        return True
    followed = _on(call.record, family.recipe, call.key)
    is_same = followed == recipe and type(followed.fill) is type(recipe.fill)
    was_confirmed = family.is_confirmed and not family.is_contradicted
    family.is_confirmed = True
    family.is_contradicted = family.is_contradicted or not is_same
    return is_same or not was_confirmed


def _factory(func: Any, args: Args, kwargs: Kwargs) -> Member | None:
    size, numbers = tuple(args[0]), args[1:]
    if not all(type(n) is int and n > 0 for n in size) or not _are_plain(numbers):
        return None
    default = torch.get_default_dtype()
    dtype = kwargs.get("dtype") or default
    others = kwargs.keys() - {"dtype", "pin_memory"}
    is_on_cpu = not others or (others == {"device"} and kwargs["device"] == devices.CPU)
    num_bytes = math.prod(size) * dtype.itemsize
    if dtype not in _DTYPES or not is_on_cpu or num_bytes > _MAX_BYTES or kwargs.get("pin_memory"):
        return None
    is_kept = known_values.keeps_value(num_bytes, dtype)
    key = id(func), dtype, default, tuple(kwargs), is_kept, backends.is_deterministic(), numbers
    record = intern(size, contiguous_stride(size), 0, dtype, devices.CPU)
    return Member((*key, *map(type, numbers)), record)


def _fill(func: Any, args: Args, kwargs: Kwargs) -> Member | None:
    tensor, numbers = args[0], args[1:]
    if not isinstance(tensor, FakeTensor) or kwargs or not _are_plain(numbers):
        return None
    record, storage = tensor._fake_meta, tensor._fake_storage
    is_whole = record.is_contiguous and not record.offset and not record.is_lazy
    num_bytes = record.num_bytes
    if not is_whole or not num_bytes or storage.num_bytes != num_bytes or record.mark:
        return None
    dtype, device = record.dtype, record.device
    if dtype not in _DTYPES or device != devices.CPU or record.layout is not torch.strided:
        return None
    if id(func) in _DRAWS:
        if random_values.keeps_draw(dtype, math.prod(record.size)):
            return None
        numbers = order(numbers)
    is_kept = known_values.keeps_value(num_bytes, dtype)
    key = id(func), dtype, is_kept, type(storage.value), torch.get_default_dtype(), numbers
    return Member((*key, *map(type, args[1:])), record)


def _are_plain(numbers: Any) -> bool:
    """Whether a number decides by its value alone whether it can be written."""
    for number in numbers:
        if type(number) not in (int, float, bool) or not abs(number) <= _LARGEST_NUMBER:
            return False
        if number == 0 and math.copysign(1.0, number) < 0:
            return False  # its key is that of zero
    return True


def order(numbers: Any) -> tuple[int, ...]:
    """How numbers compare with each other and with zero and one, which are the defaults of those
    that are not given: whether a range is empty, or a deviation negative. Of the numbers of a draw
    that is not kept, nothing else can be seen.
    """
    pairs = itertools.combinations((*numbers, 0, 1), 2)
    return tuple(int(a > b) - int(a < b) for a, b in pairs)  # numpy's booleans do not subtract


def _on(record: Metadata, recipe: Recipe, key: Any) -> Recipe:
    """`recipe` for another size."""
    is_new = isinstance(recipe.outcome, NewResult)
    outcome = NewResult(record, 0) if is_new else ArgumentResult(ArgumentPath(0))
    fill = recipe.fill
    func = None if is_new else _DRAWS.get(key[0])
    return Recipe(
        outcome=outcome,
        op=recipe.op,
        new_storage_bytes=(record.num_bytes,) if is_new else (),
        propagates_values=recipe.propagates_values,
        fill=None if fill is None else fill._replace(num_bytes=record.num_bytes),
        guard_default_dtype=recipe.guard_default_dtype,
        words_to_pass=None if func is None else random_values.words_to_pass(func, (), {}, record),
        has_plain_arguments=recipe.has_plain_arguments,
        recordable=recipe.recordable,
    )
