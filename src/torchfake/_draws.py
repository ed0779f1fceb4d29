"""Random draws whose values a program may ask for.

Enters: random operators. Leaves: whether the draw is known, and the operator with a private
generator. Draws of integers and of single numbers steer
host control flow (samplers, seeds, LayerDrop) and keep their values; draws of floats are weights
and noise and do not. Invariant: the global generators never move; a private one, forked from the
global one when first needed, draws in its place. A ``generator=`` the caller passed is the caller's
to be moved.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake import _ops, _private, _state


def is_known_draw(func: Any, results: list[Any]) -> bool:
    """Whether the draw of `func` that gives `results` keeps its values."""
    return _ops.with_generator(func) is not None and all(
        not (r.dtype.is_floating_point or r.dtype.is_complex) or r.dim() == 0 for r in results
    )


def with_private_generator(func: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`func` and `kwargs` such that running them leaves the global generator alone."""
    passed = kwargs.get("generator")
    if passed is not None and _private.same_object(passed) is not torch.default_generator:
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
