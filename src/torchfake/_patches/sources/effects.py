"""What a call of an initialiser does to a plain fake, and what follows for tensors of other sizes.

Input: effects that were seen, and the metadata of the tensors they were seen on. Output: the effect
of the same call on a tensor of another size. Invariant: an effect follows only where calls on two
sizes had the same one, but for the number of random words, which one distribution explains; and
where the size decides neither whether a value is kept nor whether the call fails.

A model has tens of sizes, and calls of each would be learned anew: most of what the first
construction of a model costs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torchfake._cache.cache import settings
from torchfake._cache.other_sizes import order
from torchfake._core import modes
from torchfake._core.metadata import DEFERRED, Metadata
from torchfake._core.storage import ConstantFill, Storage
from torchfake._operators import lazy_draws, random_values
from torchfake._random import word_counts
from torchfake._random.lazy_generators import Fill, Run, SingleNormals, Words
from torchfake._recording import fills
from torchfake._tensor import known_values
from torchfake._unknown_values.answer_log import Answer

aten = torch.ops.aten

DRAW_TYPES = frozenset((Words, SingleNormals, Run))
"""What may wait in a lazy generator more than once."""


class Kept(NamedTuple):
    """A draw whose values are kept: each call draws others, at its place in the sequence."""

    item: Fill  # what waited in the sequence
    position: int  # of the tensor that gets the values
    num_bytes: int

    def repeat(self, storage: Storage) -> None:
        """Let a storage have the values that are drawn next."""
        storage.value = lazy_draws.draw_again(self.item, self.num_bytes)


def repeatable(draws: tuple[Any, ...] | None, tensors: Sequence[Any]) -> tuple[Any, ...] | None:
    """What waits in the sequence, as it may wait there again; None if that cannot be."""
    if draws is None:
        return None
    found: list[Any] = []
    for draw in draws:
        if type(draw) in DRAW_TYPES:
            found.append(draw)
            continue
        drawn = draw.reader() if type(draw) is Fill else None
        for index, tensor in enumerate(tensors):
            storage = tensor._fake_storage
            if storage.value is drawn is not None and storage.num_bytes == drawn.num_bytes:
                found.append(Kept(draw, index, drawn.num_bytes))
                break
    return tuple(found) if len(found) == len(draws) else None


def value_beside(draws: Sequence[Any], value: Any) -> Any:
    """A known value, if it is not that of a draw."""
    is_drawn = type(value) is lazy_draws.LazyDraw and any(type(d) is Kept for d in draws)
    return None if is_drawn else value


class Effect(NamedTuple):
    """What a call leaves behind."""

    num_writes: int  # how far it moves the version counter
    draws: tuple[Any, ...]  # what waits in the lazy generator afterwards
    value: ConstantFill | None  # of the storage, all of which is written
    num_bytes: int  # of that storage
    answers: tuple[Answer, ...] = ()  # what a rejection sampler was told on the line of the call


@functools.lru_cache(4096)
def is_whole(record: Metadata) -> bool:
    """Whether a tensor with this metadata, on a storage of its size, is all of that; on the CPU."""
    is_plain = record.is_contiguous and not record.offset and not record.is_lazy
    return is_plain and record.num_bytes > 0 and record.device.type == "cpu"


def can_be_seen(tensor: Any) -> bool:
    """Whether all that a call does to a plain fake can be seen by comparing before and after."""
    if tensor._fake_storage.deferred is not None or modes.thread.passes_over_together:
        return False
    return _can_be_compared(tensor) and bool(modes.answerers())


def can_be_recorded_again(tensor: Any) -> bool:
    """The same of what a call records on a deferred fake."""
    is_deferred = tensor._fake_meta.mark == DEFERRED
    return (
        is_deferred and fills.is_plain(tensor._fake_storage.deferred) and _can_be_compared(tensor)
    )


def _can_be_compared(tensor: Any) -> bool:
    """Whether a tensor is all of its storage, which only this thread writes."""
    record = tensor._fake_meta
    if tensor.is_inference() or not is_whole(record):
        return False
    return tensor._fake_storage.num_bytes == record.num_bytes and _is_only_thread()


def _is_only_thread() -> bool:
    """Whether this thread is the only one in a mode, so that what happens is its own doing; and
    whether calls may be remembered.
    """
    if not settings.enabled or settings.checking or modes.current() is None:
        return False
    on = modes.on_any_thread.copy()  # other threads enter and leave meanwhile
    return {each.thread_id for each in on} == {modes.thread.modes[-1].thread_id}


_DISTRIBUTIONS = (aten.uniform_.default, aten.normal_.default)
_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16})
_LARGEST_NUMBER = 1e4
"""A scale computed from such a number and any size is a number of these dtypes: no size fails."""

_DRAWS_BETWEEN = frozenset({"uniform_", "normal_", "_no_grad_uniform_", "_no_grad_normal_"})
"""Functions that only draw: of their numbers, only the order can be seen afterwards. The bounds of
a bias follow from the width of its layer, and few layers have the same."""


class Family:
    """Calls of one function with the same arguments, on tensors that differ in size alone."""

    __slots__ = ("_distributions", "_effect", "_num_seen")

    def __init__(self) -> None:
        self._effect: Effect | None = None
        self._distributions: tuple[Any, ...] = _DISTRIBUTIONS
        self._num_seen = 0

    def add(self, effect: Effect, record: Metadata) -> None:
        """Note what a call was seen to do."""
        first = self._num_seen == 0
        same = self._effect is not None and _but_for_size(self._effect) == _but_for_size(effect)
        self._distributions = tuple(
            each for each in self._distributions if effect.draws in ((), _words(each, record))
        )
        self._effect = effect if (first or same) and self._distributions else None
        self._num_seen += 1

    def effect_on(self, record: Metadata) -> Effect | None:
        """What the call does to a tensor with this metadata; None if that does not follow."""
        effect = self._effect
        if effect is None or self._num_seen < 2:
            return None
        draws: tuple[Any, ...] = ()
        if effect.draws:
            draws, *others = [_words(each, record) for each in self._distributions]
            if any(other != draws for other in others):
                return None
        value = None if effect.value is None else effect.value._replace(num_bytes=record.num_bytes)
        return Effect(effect.num_writes, draws, value, record.num_bytes, effect.answers)


def _but_for_size(effect: Effect) -> Any:
    value = effect.value
    kept = None if value is None else (type(value), value.dtype, repr(value.number))
    answers = [answer._replace(asked_at="", made_at="") for answer in effect.answers]
    return effect.num_writes, len(effect.draws), kept, answers


@functools.lru_cache(4096)
def _words(distribution: Any, record: Metadata) -> tuple[Any, ...]:
    return (word_counts.taken_by(distribution, (None,), {}, record),)


def family_key(original: Any, record: Metadata, args: Any, kwargs: Any) -> Any:
    """What calls of one family have in common; None for a call that is of none."""
    kind = kind_of(record)
    if kind is None:
        return None
    values = (*args, *kwargs.values()) if kwargs else args
    for value in values:
        if isinstance(value, (int, float)) and not abs(value) <= _LARGEST_NUMBER:
            return None
    types = (*map(type, values),)
    if original.__name__ in _DRAWS_BETWEEN:
        numbers = [value for value in values if isinstance(value, (int, float))]
        others = tuple([value for value in values if not isinstance(value, (int, float))])
        return original, kind, types, (*kwargs,), others, order(numbers)
    return original, kind, types, args, (*kwargs.items(),)


@functools.lru_cache(4096)
def kind_of(record: Metadata) -> Any:
    """What tensors of one family have in common; None for tensors that are of none."""
    if record.dtype not in _DTYPES:
        return None
    keeps_draws = random_values.keeps_draw(record.dtype, math.prod(record.size))
    keeps_fills = known_values.keeps_value(record.num_bytes, record.dtype)
    return record.dtype, len(record.size), keeps_draws, keeps_fills


def as_fill(value: Any, dtype: torch.dtype) -> Any:
    """A known value as the fill that it is, if all of its elements have the same bits."""
    if not isinstance(value, torch.UntypedStorage) or not value.nbytes():
        return value
    with known_values.without_fake_mode():
        rows = torch.empty(0, dtype=torch.uint8).set_(value).view(-1, dtype.itemsize)
        is_fill = bool((rows == rows[0]).all())
        number = rows[0].view(dtype).item()
    return ConstantFill(number, dtype, value.nbytes()) if is_fill and number == number else value


def is_plain(effect: Effect) -> bool:
    """Whether an effect is of the kind that follows for other sizes."""
    return len(effect.draws) <= 1 and all(type(each) is Words for each in effect.draws)
