"""The number of random words (32-bit outputs of the CPU generator) that an operator draws.

Input: a random operator, its arguments, and the metadata of the tensor that it fills. Output: a
number of words; None if the operator has to be run to count them. Invariant: a number is returned
only if the installed torch draws that many, which is tested at the first use of a distribution.
Otherwise a replay runs the draw to count its words, which only costs time.

The numbers are those of aten/src/ATen/native/cpu/DistributionTemplates.h, whose kernels draw one
word or two for each element in order, whatever the layout; exceptions are noted at each.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from torchfake._core.metadata import Metadata
from torchfake._random.mt19937 import jump_ahead
from torchfake._torch import dispatcher

NORMAL_BLOCK_ELEMENTS = 16
"""Normal numbers are drawn in blocks of this many. Fewer numbers, or numbers for a tensor that is
not contiguous, are drawn in pairs, one by one."""


class _Distribution(NamedTuple):
    """Operators that draw the same number of words."""

    num_words: Callable[[torch.dtype, int], int]  # for a dtype and a number of elements
    sample: Callable[[torch.Tensor, torch.Generator], Any]  # fills a tensor
    may_differ: bool = False  # on processors where MKL draws, or in other versions


def _num_normal_words(dtype: torch.dtype, length: int) -> int:
    """The number of words that it takes to fill a tensor with `length` normal numbers.

    If the length is no multiple of 16, the last 16 elements are drawn again (float32, float64),
    or the last block is drawn as a whole (bfloat16, float16).
    """
    rest = length % NORMAL_BLOCK_ELEMENTS
    drawn_again = NORMAL_BLOCK_ELEMENTS if dtype.itemsize > 2 else NORMAL_BLOCK_ELEMENTS - rest
    return (length + (drawn_again if rest else 0)) * num_words_per_element(dtype)


def num_words_per_element(dtype: torch.dtype) -> int:
    """The number of words of one element that is drawn with the precision of `dtype`."""
    return 2 if dtype.itemsize == 8 else 1


def _num_words_by_dtype(dtype: torch.dtype, length: int) -> int:
    return length * num_words_per_element(dtype)


_MIN_WIDE_RANGE = 1 << 28
"""Integers from a range of this width or more take two words each."""

_UNIFORM = _Distribution(_num_words_by_dtype, lambda t, g: t.uniform_(generator=g))
_NORMAL = _Distribution(_num_normal_words, lambda t, g: t.normal_(generator=g))
_FULL_RANGE = _Distribution(_num_words_by_dtype, lambda t, g: t.random_(generator=g))
_BOUNDED = _Distribution(lambda _, n: n, lambda t, g: t.random_(0, 100, generator=g))
_BOUNDED_WIDE = _Distribution(
    lambda _, n: 2 * n, lambda t, g: t.random_(0, _MIN_WIDE_RANGE, generator=g), True
)
_GEOMETRIC = _Distribution(lambda _, n: 2 * n, lambda t, g: t.geometric_(0.5, generator=g))
_CAUCHY = _Distribution(lambda _, n: 2 * n, lambda t, g: t.cauchy_(generator=g))
_EXPONENTIAL = _Distribution(lambda _, n: 2 * n, lambda t, g: t.exponential_(generator=g), True)
_BERNOULLI = _Distribution(lambda _, n: 2 * n, lambda t, g: t.bernoulli_(0.5, generator=g), True)
_PERMUTATION = _Distribution(
    lambda _, n: max(n - 1, 0),
    lambda t, g: torch.randperm(len(t), dtype=t.dtype, generator=g, device="cpu"),
)

_DISTRIBUTIONS = {
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
"""The algorithm for larger permutations depends on the version of torch."""

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def num_words_drawn(func: Any, args: Any, record: Metadata) -> int | None:
    """The number of words that `func` draws for a tensor with this metadata; None if it is unknown.

    Args:
        func: a random operator.
        args: its positional arguments; those of ``random_`` give the width of its range.
        record: metadata of the tensor that is filled.
    """
    distribution = _DISTRIBUTIONS.get(func._schema.name)
    if distribution is None and _drops_nothing(func, args):
        return 0
    if distribution is None:
        distribution = _distribution_by_arguments(func, args, record.dtype)
    return None if distribution is None else _num_words(distribution, record)


def _drops_nothing(func: Any, args: Any) -> bool:
    """Whether an operator draws for dropout alone, and there is none: attention and recurrent
    layers of CUDA.
    """
    values = {a.name: a.default_value for a in func._schema.arguments}
    values.update(zip(values, args, strict=False))
    dropped = [values[name] for name in ("dropout_p", "dropout") if name in values]
    return bool(dropped) and (dropped[0] == 0 or values.get("train") is False)


def num_words_of_normal(record: Metadata) -> int | None:
    """The number of words that ``normal_`` draws."""
    return _num_words(_NORMAL, record)


def sample_as(packet: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Fill `tensor` with the distribution of the operator `packet`, with default parameters."""
    _DISTRIBUTIONS[packet].sample(tensor, generator)


def is_uniform_counted() -> bool:
    """Whether ``uniform_`` draws one word for each float32, so that it can skip words quickly."""
    return _is_verified(_UNIFORM, torch.float32)


def _distribution_by_arguments(func: Any, args: Any, dtype: torch.dtype) -> _Distribution | None:
    name, overload = func._schema.name, func._schema.overload_name
    if name == "aten::bernoulli_":
        return _BERNOULLI if overload == "float" else None
    if name == "aten::random_":
        if overload == "":
            return _FULL_RANGE
        low, high = (0, args[1]) if overload == "to" else args[1:3]
    elif name in ("aten::randint", "aten::randint_like"):
        bounds = args[name == "aten::randint_like" :]
        low, high = bounds[:2] if "low" in overload else (0, bounds[0])
    else:
        return None
    return _distribution_of_integers(low, high, dtype)


def _distribution_of_integers(low: Any, high: Any, dtype: torch.dtype) -> _Distribution | None:
    if not isinstance(low, int) or not isinstance(high, int):
        return None  # no upper bound: the highest value of the dtype
    if high - low < _MIN_WIDE_RANGE // 2:
        return _BOUNDED
    if dtype.is_floating_point:
        return None  # the bounds are rounded to the dtype
    return _BOUNDED_WIDE if high - low >= _MIN_WIDE_RANGE else _BOUNDED


@lru_cache(maxsize=4096)
def _num_words(distribution: _Distribution, record: Metadata) -> int | None:
    length = math.prod(record.size)
    if distribution is _NORMAL and (length < NORMAL_BLOCK_ELEMENTS or not record.lies_in_order):
        return None
    if distribution is _PERMUTATION and length > _MAX_PERMUTED:
        return None
    if not _is_verified(distribution, record.dtype):
        return None
    return distribution.num_words(record.dtype, length)


@cache
def _is_verified(distribution: _Distribution, dtype: torch.dtype) -> bool:
    """Whether the installed torch draws as many words as `distribution` says."""
    if dtype not in (_FLOATS if distribution in (_UNIFORM, _NORMAL) else (*_FLOATS, *_INTEGERS)):
        return False
    try:
        matches = all(_matches_one_draw(distribution, dtype, length) for length in (16, 41))
    except RecursionError:  # of the program: the next call asks again
        raise
    except RuntimeError:  # the operator does not support the dtype
        return False
    if not matches and not distribution.may_differ:
        _warn_once()
    return matches


def _matches_one_draw(distribution: _Distribution, dtype: torch.dtype, length: int) -> bool:
    generator = torch.Generator(device="cpu")
    before = generator.get_state()
    with dispatcher.as_eager(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about bounds that the dtype cannot represent
        distribution.sample(torch.empty(length, dtype=dtype, device="cpu"), generator)
    expected = jump_ahead(before, distribution.num_words(dtype, length))
    return expected.numpy().tobytes() == generator.get_state().numpy().tobytes()


@cache
def _warn_once() -> None:
    warnings.warn(
        f"torch {torch.__version__} generates random numbers differently than torchfake expects. "
        "Values are still right, but draws are replayed sequentially, which is slower; and "
        "after large draws the global generator is not left where eager would leave it. Please "
        "report this",
        stacklevel=2,
    )
