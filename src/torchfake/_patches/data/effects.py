"""What a call of an initialiser does to a plain fake, and what follows for tensors of other sizes.

Input: effects that were seen, and the metadata of the tensors they were seen on. Output: the effect
of the same call on a tensor of another size. Invariant: an effect follows only where calls on two
sizes had the same one, but for the number of random words, which one distribution explains; and
where the size decides neither whether a value is kept nor whether the call fails. Called by:
``_patches/data/initializers``.

A model has tens of sizes, and calls of each would be learned anew: most of what the first
construction of a model costs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from torchfake._answers.answers import Answer
from torchfake._cache.other_sizes import order
from torchfake._core.metadata import Metadata
from torchfake._core.storage import ConstantFill
from torchfake._operators import random_values
from torchfake._random import word_counts
from torchfake._random.private_streams import Words
from torchfake._tensor import known_values

aten = torch.ops.aten


class Effect(NamedTuple):
    """What a call leaves behind."""

    num_writes: int  # how far it moves the version counter
    draws: tuple[Any, ...]  # what waits in the private stream afterwards
    value: ConstantFill | None  # of the storage, all of which is written
    num_bytes: int  # of that storage
    answers: tuple[Answer, ...] = ()  # what a rejection sampler was told on the line of the call


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


def _words(distribution: Any, record: Metadata) -> tuple[Any, ...]:
    return (word_counts.taken_by(distribution, (None,), {}, record),)


def family_key(original: Any, record: Metadata, args: Any, kwargs: Any) -> Any:
    """What calls of one family have in common; None for a call that is of none."""
    dtype, num_elements = record.dtype, math.prod(record.size)
    numbers = [n for n in (*args, *kwargs.values()) if isinstance(n, (int, float))]
    if dtype not in _DTYPES or any(not abs(n) <= _LARGEST_NUMBER for n in numbers):
        return None
    if random_values.keeps_draw(dtype, num_elements):
        return None
    is_kept = known_values.keeps_value(record.num_bytes, dtype)
    types = (*map(type, args), *map(type, kwargs.values()))
    common = original, dtype, len(record.size), is_kept, types
    if original.__name__ in _DRAWS_BETWEEN:
        others = tuple(n for n in (*args, *kwargs.values()) if not isinstance(n, (int, float)))
        return *common, tuple(kwargs), others, order(numbers)
    return *common, args, tuple(kwargs.items())


def is_plain(effect: Effect) -> bool:
    """Whether an effect is of the kind that follows for other sizes."""
    return len(effect.draws) <= 1 and all(type(each) is Words for each in effect.draws)
