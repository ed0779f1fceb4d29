"""The first line about a model: its parameters, its bytes, and the GPUs that its size asks for.

Input: a Summary. Output: one line; the commands that say more. Invariant: GPUs are named by what
the weights, or the states of training, take alone; what a step takes on top is for ``fit`` and
``plan``.
"""

from __future__ import annotations

from torchfake._core.gpu_profiles import CudaProfile, profiles, usual_profiles
from torchfake.inspect.contents.weights import Weights
from torchfake.inspect.memory.fit import RESERVED_BYTES
from torchfake.inspect.records.units import bytes_text, compared_bytes, count_text
from torchfake.inspect.summary import Summary

LEAST_BYTES = 100 * 10**6
"""Of parameters: whatever GPU there is, it takes a smaller model."""

SEVERAL_OF = "h100-80gb"
"""What is counted where one GPU does not do."""

STATE_BYTES = 16
"""A parameter that AdamW trains in mixed precision: itself, its gradient and two moments, each in
float32 (ZeRO, Rajbhandari et al. 2020, counts as many)."""

_SHORT_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def headline(summary: Summary, quantized: Weights | None = None) -> str:
    """``70.6B params | 141 GB (131 GiB) bf16 | weights fit on b200-180gb | ...``."""
    size = summary.tree.size
    parts = [f"{count_text(size.num_parameters)} params{_active(summary)}"]
    parts.append(f"{compared_bytes(size.parameter_bytes)}{_dtype(summary)}")
    if quantized is not None:
        parts.append(f"{compared_bytes(quantized.num_bytes)} {quantized.scheme}")
    if size.parameter_bytes >= LEAST_BYTES:
        held = held_bytes(summary) if quantized is None else quantized.num_bytes
        of = "the weights" if quantized is None else f"the {quantized.scheme} weights"
        parts.append(f"smallest GPU for {of}: {gpus_for(held)}")
        if size.num_trainable and quantized is None:
            states = training_bytes(summary)
            text = f"AdamW training: {gpus_for(states)} ({bytes_text(states)} before activations)"
            parts.append(text)
    return " | ".join(parts)


def next_lines(summary: Summary, target: str) -> list[tuple[str, str]]:
    """The commands that say what a step takes; none for a model that fits anywhere."""
    if summary.tree.size.parameter_bytes < LEAST_BYTES:
        return []
    lines = [("next", f"torchfake fit {target}")]
    number = num_gpus(training_bytes(summary), profiles()[SEVERAL_OF])
    if number > 1:
        lines.append(("", f"torchfake plan {target} --gpus {number} --gpu {SEVERAL_OF}"))
    return lines


def held_bytes(summary: Summary) -> int:
    """What the weights and buffers take."""
    return summary.tree.size.parameter_bytes + summary.tree.size.buffer_bytes


def training_bytes(summary: Summary) -> int:
    """What is held between two steps of AdamW in mixed precision."""
    size = summary.tree.size
    share = size.num_frozen / max(size.num_parameters, 1)
    frozen = round(size.parameter_bytes * share)
    return STATE_BYTES * size.num_trainable + frozen + size.buffer_bytes


def gpus_for(num_bytes: int) -> str:
    """The smallest GPU with room for so much, or how many."""
    for name, gpu in usual_profiles().items():
        if num_bytes <= gpu.total_memory - RESERVED_BYTES:
            return name
    return f"{num_gpus(num_bytes, profiles()[SEVERAL_OF])} x {SEVERAL_OF}"


def num_gpus(num_bytes: int, gpu: CudaProfile) -> int:
    """How many GPUs have room for so much together: a power of two."""
    number = 1
    while num_bytes > number * (gpu.total_memory - RESERVED_BYTES):
        number *= 2
    return number


def _active(summary: Summary) -> str:
    if summary.active is None:
        return ""
    return f" ({count_text(summary.active.num_parameters)} active)"


def _dtype(summary: Summary) -> str:
    """The dtype of nearly all parameters, by its short name."""
    if not summary.by_dtype:
        return ""
    name, (_, most) = next(iter(summary.by_dtype.items()))
    total = sum(num_bytes for _, num_bytes in summary.by_dtype.values())
    return f" {_SHORT_NAMES.get(name, name)}" if most >= 0.99 * total else " of mixed dtypes"
