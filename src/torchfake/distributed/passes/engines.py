"""Serving engines: what they reach of a GPU's figures, and what they add to each pass.

Input: the name of an engine. Output: an :class:`Engine`. Invariant: it is said what the constants
were chosen on.

Those of ``engine`` were chosen on the rows of times of docs/serving.md that are not held out, by
``python -m tests.published.fit_serving``, and rounded: static batches and first tokens of
TensorRT-LLM, full loads, NIM, mixtures, batches of one. ``fused`` was not: the rows do not tell it.
That the host limits short prompts and launches a pass ahead, and how reading and arithmetic
overlap, was found with first tokens of both halves. Further rounds of the choice lower the sum of
errors by 1 %, along which launching and the time between passes are exchanged: they were left out.
"""

from __future__ import annotations

from typing import NamedTuple

from torchfake.errors import InputsError
from torchfake.inspect.timing.efficiency import KERNEL_SECONDS


class Engine(NamedTuple):
    """What passes of an engine take, beside the arithmetic and the bytes."""

    name: str
    weights_share: float  # of the bandwidth of memory, when weights are read
    cache_share: float  # of it, when keys and values are read
    products_share: float  # of the rate of eager PyTorch's products in the model's dtype
    narrow_share: float  # of that rate, for operands of 8 bits
    fp4_share: float  # of that rate, for operands of 4 bits
    fused: float  # the share of other operators' bytes that is left when they are fused
    overlap: float  # the norm by which arithmetic and reading of a product add up: 1 is their sum
    launch_seconds: float  # of the host, for a layer of a pass over prompts, which is no graph
    kernel_seconds: float  # of starting and ending kernels, for each operator that they fuse
    step_seconds: float  # of the host between passes, which wait for it
    sequence_seconds: float  # of the host, for each sequence that yields a token, while GPUs work
    message_seconds: float  # of a message of no bytes
    link_share: float  # of the bandwidth of links
    is_eager: bool = False  # each operator of a layer is launched by itself, in every pass


ENGINES = {
    found.name: found
    for found in (
        Engine(
            "engine",
            weights_share=0.92,
            cache_share=0.92,
            products_share=1.04,
            narrow_share=1.05,
            fp4_share=0.98,
            fused=0.35,
            overlap=1.13,
            launch_seconds=260e-6,
            kernel_seconds=1.35e-6,
            step_seconds=0.2e-3,
            sequence_seconds=30e-6,
            message_seconds=4e-6,
            link_share=0.95,
        ),
        Engine(
            "eager",
            weights_share=0.80,
            cache_share=0.25,
            products_share=1.0,
            narrow_share=0.95,
            fp4_share=0.95,
            fused=1.0,
            overlap=1.4,
            launch_seconds=0.0,
            kernel_seconds=KERNEL_SECONDS,
            step_seconds=1e-3,
            sequence_seconds=0.0,
            message_seconds=20e-6,
            link_share=0.75,
            is_eager=True,
        ),
    )
}
"""``engine``: fused kernels, in CUDA graphs when no prompts are read: vLLM and TensorRT-LLM.

``eager``: the operators of transformers' modules one after the other, as ``generate`` runs them. It
copies keys and values to append a token: they are read twice and written once, and attention reads
them again. It was not compared with published figures.
"""


def engine_named(name: str) -> Engine:
    """The engine with a name.

    Raises:
        InputsError: if there is none.
    """
    if name not in ENGINES:
        raise InputsError(f"engine={name!r} is not {', '.join(ENGINES)}")
    return ENGINES[name]
