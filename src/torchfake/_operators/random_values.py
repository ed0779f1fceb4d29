"""Random draws: the metadata of their results, and values that are kept for programs to read.

Input: a random operator, and its results or keyword arguments. Output: whether the values of the
draw are kept, and the operator with a private generator. Invariant: the global generators never
move; a private generator, forked from the global one when it is first needed, draws in its place. A
``generator=`` that the caller has given does move. Called by: ``_operators/constant_propagation``.

Draws of integers and of single numbers decide what a program does next (samplers, seeds, LayerDrop)
and keep their values; draws of floats are weights and noise and do not.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import modes, schemas
from torchfake._torch import backends

aten = torch.ops.aten


def keeps_drawn_values(func: Any, results: list[Any]) -> bool:
    """Whether the values that `func` draws for `results` are kept."""
    return schemas.overload_with_generator(func) is not None and all(
        not (r.dtype.is_floating_point or r.dtype.is_complex) or r.dim() == 0 for r in results
    )


def with_private_generator(func: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`func` and `kwargs` so changed that running them does not move the global generator."""
    given = kwargs.get("generator")
    if given is not None and backends.canonical_generator(given) is not torch.default_generator:
        return func, kwargs
    overload = schemas.overload_with_generator(func)
    assert overload is not None, f"{func} draws, and takes no generator"
    return overload, {**kwargs, "generator": _private_generator()}


def _private_generator() -> torch.Generator:
    """The thread's fork of the global generator; a new fork after the user has reseeded that."""
    now = torch.default_generator.get_state()
    forked_generator = modes.forked_generator()
    if (
        forked_generator.generator is None
        or forked_generator.forked_from is None
        or not torch.equal(now, forked_generator.forked_from)
    ):
        forked_generator.generator, forked_generator.forked_from = _fork(now), now
    return forked_generator.generator


def _fork(state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator(device="cpu")
    generator.set_state(state)
    return generator
