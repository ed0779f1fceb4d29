"""How many words of a CPU generator's stream a random operator takes.

Enters: an operator, its arguments, the record of what it fills. Leaves: a number of 32-bit words,
or None: it must be run to know. Invariant: a number is given only where this torch was seen to draw
as many, the first time that it was asked for; where it does not, replay runs the draw and loses
time alone.

The counts are those of aten/src/ATen/native/cpu/DistributionTemplates.h, whose kernels take one
word or two for each element in order, whatever the layout, with the exceptions written at each.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from torchfake import _private
from torchfake._metadata import Metadata
from torchfake._mt19937 import advanced

SCALAR = 16
"""Fewer normal numbers than this, and those not in order, are made in pairs, one at a time."""


class _Kind(NamedTuple):
    """Operators that take as many words as each other."""

    words: Callable[[torch.dtype, int], int]  # for so many elements of that dtype
    sample: Callable[[torch.Tensor, torch.Generator], Any]  # one of them, on a tensor to fill
    may_differ: bool = False  # by processor (MKL draws in its stead on some), or by version


def _normal_words(dtype: torch.dtype, length: int) -> int:
    """Where a fill is not of a multiple of 16, the last 16 are drawn again (float32, float64), or
    the rest of them is drawn too (bfloat16, float16).
    """
    rest = length % SCALAR
    drawn_again = SCALAR if dtype.itemsize > 2 else SCALAR - rest
    return (length + (drawn_again if rest else 0)) * words_each(dtype)


def words_each(dtype: torch.dtype) -> int:
    """The words of one element, of a draw whose precision is the dtype's."""
    return 2 if dtype.itemsize == 8 else 1


_WIDE = 1 << 28
"""Integers of so wide a range, or wider, take two words each."""

_UNIFORM = _Kind(lambda dtype, n: n * words_each(dtype), lambda t, g: t.uniform_(generator=g))
_NORMAL = _Kind(_normal_words, lambda t, g: t.normal_(generator=g))
_WHOLE = _Kind(lambda dtype, n: n * words_each(dtype), lambda t, g: t.random_(generator=g))
_RANGE = _Kind(lambda _, n: n, lambda t, g: t.random_(0, 100, generator=g))
_WIDE_RANGE = _Kind(lambda _, n: 2 * n, lambda t, g: t.random_(0, _WIDE, generator=g), True)
_GEOMETRIC = _Kind(lambda _, n: 2 * n, lambda t, g: t.geometric_(0.5, generator=g))
_CAUCHY = _Kind(lambda _, n: 2 * n, lambda t, g: t.cauchy_(generator=g))
_EXPONENTIAL = _Kind(lambda _, n: 2 * n, lambda t, g: t.exponential_(generator=g), True)
_BERNOULLI = _Kind(lambda _, n: 2 * n, lambda t, g: t.bernoulli_(0.5, generator=g), True)
_PERMUTATION = _Kind(
    lambda _, n: max(n - 1, 0),
    lambda t, g: torch.randperm(len(t), dtype=t.dtype, generator=g, device="cpu"),
)

_KINDS = {
    "aten::uniform_": _UNIFORM,
    "aten::rand": _UNIFORM,
    "aten::rand_like": _UNIFORM,
    "aten::normal_": _NORMAL,
    "aten::randn": _NORMAL,
    "aten::randn_like": _NORMAL,
    "aten::geometric_": _GEOMETRIC,
    "aten::cauchy_": _CAUCHY,
    "aten::exponential_": _EXPONENTIAL,
    "aten::randperm": _PERMUTATION,
}
_MAX_PERMUTED = 1 << 27
"""Larger permutations have had more than one algorithm."""

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def words_drawn(func: Any, args: Any, record: Metadata) -> int | None:
    """The 32-bit words that `func` draws for a tensor of `record`; None if it must be run.

    Args:
        func: a random operator.
        args: its positional arguments; those of ``random_`` say how wide its range is.
        record: of the tensor that is filled.
    """
    kind = _KINDS.get(func._schema.name) or _kind_by_arguments(func, args, record.dtype)
    return None if kind is None else _counted(kind, record)


def words_of_normal(record: Metadata) -> int | None:
    """The same of ``normal_``."""
    return _counted(_NORMAL, record)


def draw_as(packet: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Fill `tensor` as `packet` would, with its own bounds."""
    _KINDS[packet].sample(tensor, generator)


def uniform_is_counted() -> bool:
    """Whether each float32 of ``uniform_`` takes a word."""
    return _is_as_counted(_UNIFORM, torch.float32)


def _kind_by_arguments(func: Any, args: Any, dtype: torch.dtype) -> _Kind | None:
    name, overload = func._schema.name, func._schema.overload_name
    if name == "aten::bernoulli_":
        return _BERNOULLI if overload == "float" else None
    if name == "aten::random_":
        if overload == "":
            return _WHOLE
        low, high = (0, args[1]) if overload == "to" else args[1:3]
    elif name in ("aten::randint", "aten::randint_like"):
        bounds = args[name == "aten::randint_like" :]
        low, high = bounds[:2] if "low" in overload else (0, bounds[0])
    else:
        return None
    if not isinstance(low, int) or not isinstance(high, int):
        return None  # the highest there is, for one
    if high - low < _WIDE // 2:
        return _RANGE
    if dtype.is_floating_point:
        return None  # the bounds are rounded, one way or the other
    return _WIDE_RANGE if high - low >= _WIDE else _RANGE


@lru_cache(maxsize=4096)
def _counted(kind: _Kind, record: Metadata) -> int | None:
    length = math.prod(record.size)
    if kind is _NORMAL and (length < SCALAR or not record.is_in_order):
        return None
    if kind is _PERMUTATION and length > _MAX_PERMUTED:
        return None
    return kind.words(record.dtype, length) if _is_as_counted(kind, record.dtype) else None


@cache
def _is_as_counted(kind: _Kind, dtype: torch.dtype) -> bool:
    """Whether this torch draws as counted here."""
    if dtype not in (_FLOATS if kind in (_UNIFORM, _NORMAL) else (*_FLOATS, *_INTEGERS)):
        return False
    try:
        is_right = all(_counts_right(kind, dtype, length) for length in (SCALAR, 41))
    except RuntimeError:  # not with this dtype
        return False
    if not is_right and not kind.may_differ:
        _warn()
    return is_right


def _counts_right(kind: _Kind, dtype: torch.dtype, length: int) -> bool:
    generator = torch.Generator(device="cpu")
    before = generator.get_state()
    with _private.as_eager(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bounds that a dtype does not have
        kind.sample(torch.empty(length, dtype=dtype, device="cpu"), generator)
    counted = advanced(before, kind.words(dtype, length))
    return counted.numpy().tobytes() == generator.get_state().numpy().tobytes()


@cache
def _warn() -> None:
    """Say so, once."""
    warnings.warn(
        f"torch {torch.__version__} draws random numbers in another way than torchfake knows. "
        "Values are right all the same, and made one after the other: slower, and only up to a "
        "point is the global generator left where eager would leave it. Please report this",
        stacklevel=2,
    )
