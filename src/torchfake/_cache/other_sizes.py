"""Recipes for calls with a new size, derived from the recipes of calls with other sizes.

Input: a call without a cached recipe: of a factory (``empty``, ``zeros``, ``ones``, ``full``), of
an operator that fills a whole tensor in place, or of ``detach``, which makes each ``nn.Parameter``.
Output: the recipe for the call, if it can be derived.
Invariant: calls that differ in size only form a *family*. A recipe is derived only once two calls
of the family have run, and the recipe derived from the first equals that learned from the second.
The size never decides whether a call of the family fails, or whether its value is kept.

Every architecture has weights of other sizes. Allocating and filling them causes half of the misses
when a model is built for the first time.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from torchfake._cache.recipes import (
    ArgumentPath,
    ArgumentResult,
    NewResult,
    Recipe,
    ViewResult,
)
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
"""By the identity of operators, whose own hash is a Python call."""

OPERATORS = frozenset([*_FACTORIES, *_FILLS, id(aten.detach.default)])
"""The operators that have families, by identity."""

_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_MAX_BYTES = 1 << 62
_LARGEST_NUMBER = 1e4
"""Numbers up to this magnitude fit all of these dtypes."""

_MAX_FAMILIES = 4096
_FIRST = ArgumentPath(0)


class _Family:
    """Calls that differ in size only, and the recipe that was learned from the first."""

    __slots__ = ("is_confirmed", "is_contradicted", "recipe")

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.is_confirmed = False  # another call has run since
        self.is_contradicted = False  # its recipe differed from the derived one


class Member(NamedTuple):
    """A call that belongs to a family."""

    key: Any  # equal for all calls of the family
    record: Metadata  # of the tensor that is made, filled or detached


_families: dict[Any, _Family] = {}


def clear() -> None:
    """Forget all families."""
    _families.clear()


def member(func: Any, args: Args, kwargs: Kwargs) -> Member | None:
    """The call as a member of its family; None if it belongs to none."""
    if id(func) in _FACTORIES:
        return _factory(func, args, kwargs)
    if id(func) in _FILLS:
        return _fill(func, args, kwargs)
    return _detach(args[0]) if func is aten.detach.default else None


def follow(call: Member) -> Recipe | None:
    """Derive the recipe of a call from its family; None if that is not possible."""
    family = _families.get(call.key)
    if family is None or not family.is_confirmed or family.is_contradicted:
        return None
    return _resized(call.record, family.recipe, call.key)


def note(call: Member, recipe: Recipe) -> bool:
    """Note which recipe a call taught. False if :func:`follow` would have derived another one."""
    if len(_families) >= _MAX_FAMILIES:
        _families.clear()
    family = _families.setdefault(call.key, _Family(recipe))
    if family.recipe is recipe:
        return True
    followed = _resized(call.record, family.recipe, call.key)
    is_same = followed == recipe and type(followed.fill) is type(recipe.fill)
    was_confirmed = family.is_confirmed and not family.is_contradicted
    family.is_confirmed = True
    family.is_contradicted = family.is_contradicted or not is_same
    return is_same or not was_confirmed


def _factory(func: Any, args: Args, kwargs: Kwargs) -> Member | None:
    size, numbers = tuple(args[0]), args[1:]
    if not all(type(n) is int and n > 0 for n in size) or not _are_representable(numbers):
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
    if not isinstance(tensor, FakeTensor) or kwargs or not _are_representable(numbers):
        return None
    record, storage = tensor._fake_meta, tensor._fake_storage
    is_whole = record.is_contiguous and not record.offset and not record.differs_from_memory
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


def _detach(tensor: Any) -> Member | None:
    if not isinstance(tensor, FakeTensor):
        return None
    record, value = tensor._fake_meta, tensor._fake_storage.value
    is_plain = not (record.mark or record.differs_from_memory) and record.layout is torch.strided
    key = id(aten.detach.default), record.dtype, type(value), torch.get_default_dtype()
    return Member(key, record) if is_plain else None


def _are_representable(numbers: Any) -> bool:
    """Whether all numbers are plain Python numbers that each of the dtypes can hold."""
    for number in numbers:
        if type(number) not in (int, float, bool) or not abs(number) <= _LARGEST_NUMBER:
            return False
        if number == 0 and math.copysign(1.0, number) < 0:
            return False  # -0.0 would have the key of zero
    return True


@lru_cache(maxsize=1024)
def order(numbers: Any) -> tuple[int, ...]:
    """The order of the parameters of a draw, compared with each other and with their defaults 0
    and 1. The order decides whether the draw is refused (an empty range, a negative deviation).
    If its values are not kept, nothing else depends on the parameters.
    """
    pairs = itertools.combinations((*numbers, 0, 1), 2)
    return tuple(int(a > b) - int(a < b) for a, b in pairs)  # numpy's booleans do not subtract


def _resized(record: Metadata, recipe: Recipe, key: Any) -> Recipe:
    """Derive from `recipe` the recipe of a call whose tensor has the metadata `record`."""
    is_new = isinstance(recipe.outcome, NewResult)
    outcome = _resized_outcome(record, recipe.outcome)
    fill = recipe.fill
    func = None if is_new else _DRAWS.get(key[0])
    return Recipe(
        outcome=outcome,
        op=recipe.op,
        new_storage_bytes=(record.num_bytes,) if is_new else (),
        propagates_values=recipe.propagates_values,
        fill=None if fill is None else fill._replace(num_bytes=record.num_bytes),
        guard_default_dtype=recipe.guard_default_dtype,
        words_to_skip=None if func is None else random_values.words_to_skip(func, (), {}, record),
        has_plain_arguments=recipe.has_plain_arguments,
        recordable=recipe.recordable,
    )


def _resized_outcome(record: Metadata, outcome: Any) -> Any:
    if isinstance(outcome, NewResult):
        return NewResult(record, 0)
    return ViewResult(record, _FIRST) if isinstance(outcome, ViewResult) else ArgumentResult(_FIRST)
