"""Serving engines: what they reach of a GPU's figures, and what they add to each pass.

Input: the name of an engine. Output: an :class:`Engine`. Invariant: every constant says what it was
chosen on: rows of published tables whose number is even; the others were only compared.
"""

from __future__ import annotations

from typing import NamedTuple

from torchfake.errors import InputsError


class Engine(NamedTuple):
    """What passes of an engine take, beside the arithmetic and the bytes."""

    name: str
    weights_share: float  # of the bandwidth of memory, when weights are read
    cache_share: float  # of it, when keys and values are read
    narrow_share: float  # of the rate of products in the model's dtype, for narrower ones
    fused: float  # the share of other operators' bytes that is left when they are fused
    overlap: float  # the norm by which arithmetic and reading of a product add up: 1 is their sum
    launch_seconds: float  # of the host, for a layer of a pass over prompts, which is no graph
    layer_seconds: float  # of starting and ending the kernels of a layer
    step_seconds: float  # of scheduling, sampling and sending tokens, for each pass
    message_seconds: float  # of a message of no bytes
    link_share: float  # of the bandwidth of links


ENGINES = {
    "engine": Engine("engine", 0.80, 0.92, 0.95, 0.35, 1.4, 230e-6, 28e-6, 0.5e-3, 10e-6, 0.75),
}


def engine_named(name: str) -> Engine:
    """The engine with a name.

    Raises:
        InputsError: if there is none.
    """
    if name not in ENGINES:
        raise InputsError(f"engine={name!r} is not {', '.join(ENGINES)}")
    return ENGINES[name]
