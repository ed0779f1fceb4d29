"""Random draws: those whose values a program may ask for, and how long they are.

Enters: random operators. Leaves: whether the draw is known, the operator with a private generator,
and how many words of its generator's stream it takes. Draws of integers and of single numbers steer
host control flow (samplers, seeds, LayerDrop) and keep their values; draws of floats are weights
and noise and do not. Invariant: the global generators never move; a private one, forked from the
global one when first needed, draws in its place. A ``generator=`` the caller passed is the caller's
to be moved.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import torch

from torchfake import _ops, _private, _state
from torchfake._metadata import Metadata, contiguous_stride
from torchfake._mt19937 import advanced


def is_known_draw(func: Any, results: list[Any]) -> bool:
    """Whether the draw of `func` that gives `results` keeps its values."""
    return _ops.with_generator(func) is not None and all(
        not (r.dtype.is_floating_point or r.dtype.is_complex) or r.dim() == 0 for r in results
    )


def with_private_generator(func: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`func` and `kwargs` such that running them leaves the global generator alone."""
    passed = kwargs.get("generator")
    if passed is not None and passed is not torch.default_generator:
        return func, kwargs
    overload = _ops.with_generator(func)
    assert overload is not None, f"{func} draws, and takes no generator"
    return overload, {**kwargs, "generator": _private_generator()}


def _private_generator() -> torch.Generator:
    """The thread's fork of the global generator; forked anew after the user has reseeded that."""
    now = torch.default_generator.get_state()
    draws = _state.draws()
    if (
        draws.generator is None
        or draws.forked_from is None
        or not torch.equal(now, draws.forked_from)
    ):
        draws.generator, draws.forked_from = _fork(now), now
    return draws.generator


def _fork(state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator(device="cpu")
    generator.set_state(state)
    return generator


# How many words of a CPU generator's stream a draw takes, where that can be said without drawing.

_NORMAL = frozenset({"aten::normal_", "aten::randn", "aten::randn_like"})
_UNIFORM = frozenset({"aten::uniform_", "aten::rand", "aten::rand_like"})
_SCALAR = 16
"""Fewer normal numbers than this, and those not in order, are made in pairs, one at a time."""


@lru_cache(maxsize=4096)
def words_drawn(packet: str, record: Metadata) -> int | None:
    """The 32-bit words that `packet` draws for a tensor of `record`; None if it must be run.

    aten/src/ATen/native/cpu/DistributionTemplates.h: a word for each number, two for a float64;
    where a normal fill is not of a multiple of 16, the last 16 are drawn again (float32, float64)
    or the rest of them is drawn too (bfloat16, float16).
    """
    if packet not in _NORMAL and packet not in _UNIFORM:
        return None
    kind = "normal" if packet in _NORMAL else "uniform"
    is_in_order = record.stride == contiguous_stride(record.size)
    length = math.prod(record.size)
    if kind == "normal" and (length < _SCALAR or not is_in_order):
        return None
    return _words(kind, record.dtype, length) if _is_as_counted(kind, record.dtype) else None


def _words(kind: str, dtype: torch.dtype, length: int) -> int:
    rest = length % _SCALAR if kind == "normal" else 0
    drawn_again = _SCALAR if dtype.itemsize > 2 else _SCALAR - rest
    return (length + (drawn_again if rest else 0)) * (2 if dtype == torch.float64 else 1)


@cache
def _is_as_counted(kind: str, dtype: torch.dtype) -> bool:
    """Whether this torch draws as counted here: one that does not is run, and loses time alone."""
    if dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        return False
    return all(_counts_right(kind, dtype, length) for length in (16, 41))


def _counts_right(kind: str, dtype: torch.dtype, length: int) -> bool:
    generator = torch.Generator(device="cpu")
    before = generator.get_state()
    with _private.as_eager():
        numbers = torch.empty(length, dtype=dtype, device="cpu")
        getattr(numbers, f"{kind}_")(generator=generator)
    counted = advanced(before, _words(kind, dtype, length))
    return counted.numpy().tobytes() == generator.get_state().numpy().tobytes()
