"""The first line about a model: its parameters, its bytes, and the GPUs that it needs at least.

Input: a Summary. Output: one line; commands to run next. Invariant: only the bytes of the weights
determine the GPU, which the line says; ``fit`` and ``plan`` include the memory of a step.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from torchfake._core.gpu_profiles import CUDA, CudaProfile, profiles, usual_profiles
from torchfake.inspect.contents.schemes import SCHEMES
from torchfake.inspect.contents.weights import Weights
from torchfake.inspect.memory.fit import RESERVED_BYTES
from torchfake.inspect.records.units import bytes_text, compared_bytes, count_text, main_dtype
from torchfake.inspect.show.rows import Line
from torchfake.inspect.show.verdict import in_part
from torchfake.inspect.summary import Summary

LEAST_BYTES = 100 * 10**6
"""Bytes of parameters below which a model fits on any GPU, so that no GPU is named."""

SEVERAL_OF = "h100-80gb"
"""The GPU that is counted if no single GPU is large enough."""

STATE_BYTES = 16
"""Bytes per parameter that AdamW trains in mixed precision: the parameter, its gradient and two
moments, each in float32 (the same number as in ZeRO, Rajbhandari et al. 2020)."""


def headline(summary: Summary, quantized: Weights | None = None, *, with_gpu: bool = True) -> str:
    """``2.7B params | 10.8 GB fp32 | smallest of 15 common GPUs for the weights: t4-16gb``; the GPU
    is left out above the memory of a step, which may need a larger one.
    """
    size = summary.tree.size
    active = summary.active
    used = "" if active is None else f" ({count_text(active.num_parameters)} active)"
    num_bytes = {name: num_bytes for name, (_, num_bytes) in summary.by_dtype.items()}
    dtype = main_dtype(num_bytes) if num_bytes else ""
    parts = [
        f"{count_text(size.num_parameters)} params{used}",
        f"{compared_bytes(size.parameter_bytes)}{' of' * (' ' in dtype)} {dtype}".rstrip(),
    ]
    if quantized is not None:
        size_text = f"{compared_bytes(quantized.num_bytes)} {quantized.scheme}"
        parts.append(f"{size_text}{in_part(quantized)}")
    return " | ".join([*parts, *(_gpus_of_weights(summary, quantized) if with_gpu else ())])


def _gpus_of_weights(summary: Summary, quantized: Weights | None) -> Iterator[str]:
    """Whether the weights fit on the GPU of the summary, or else the smallest GPU for them."""
    weights = summary.tree.size.parameter_bytes + summary.tree.size.buffer_bytes
    if summary.gpu is not None:
        fit = "fit" if weights <= summary.gpu.total_memory - RESERVED_BYTES else "do not fit"
        yield f"the weights {fit} on {summary.gpu.name}"
    elif summary.tree.size.parameter_bytes >= LEAST_BYTES:
        held = (weights,) if quantized is None else (quantized.num_bytes, quantized.scheme)
        yield _smallest_for(*held)


def _smallest_for(num_bytes: int, scheme: str = "") -> str:
    """``smallest of 15 common GPUs for the weights: t4-16gb``, and why not a smaller one where the
    kernels of a scheme do not run on that.
    """
    what = " ".join(filter(None, ("the", scheme, "weights")))
    needs = SCHEMES[scheme].least_capability if scheme in SCHEMES else (0, 0)
    found, among = gpus_for(num_bytes, needs), usual_profiles()
    which = f"smallest of {len(among)} common GPUs" if found in among else "GPUs"
    is_larger = found != gpus_for(num_bytes)
    why = f" ({scheme} kernels need compute capability {'.'.join(map(str, needs))})" * is_larger
    return f"{which} for {what}: {found}{why}"


def training_lines(summary: Summary) -> list[Line]:
    """The line about the states of training, which are not all that a step needs."""
    size = summary.tree.size
    if size.parameter_bytes < LEAST_BYTES or not size.num_trainable:
        return []
    states = bytes_text(training_bytes(summary))
    return [("training", f"AdamW in mixed precision holds {states}, before activations")]


def next_commands(summary: Summary, target: Sequence[str], options: Sequence[str]) -> list[str]:
    """Commands that give the memory of a step; none for a model that fits on any GPU.

    Args:
        summary: the summary of the model.
        target: the words that name the model, with changes of its config.
        options: further words of the user's, which ``plan`` does not take.
    """
    if summary.tree.size.parameter_bytes < LEAST_BYTES:
        return []
    step = ["torchfake", "fit", *target, *options]
    commands = [step] if "--weights" in options else [step, [*step, "--train"]]
    number = num_gpus(training_bytes(summary), profiles()[SEVERAL_OF])
    if number > 1:
        on = ["--gpus", str(number), "--gpu", SEVERAL_OF]
        commands.append(["torchfake", "plan", *target, *on])
    return [*map(shlex.join, commands)]


def training_bytes(summary: Summary) -> int:
    """Bytes held between two training steps with AdamW in mixed precision."""
    size = summary.tree.size
    share = size.num_frozen / max(size.num_parameters, 1)
    frozen = round(size.parameter_bytes * share)
    return STATE_BYTES * size.num_trainable + frozen + size.buffer_bytes


def gpus_for(num_bytes: int, least_capability: tuple[int, int] = (0, 0)) -> str:
    """The smallest common GPU with room for so many bytes, or a number of GPUs.

    Args:
        num_bytes: the bytes.
        least_capability: of NVIDIA's GPUs, that kernels need.
    """
    for name, gpu in usual_profiles().items():
        if gpu.backend == CUDA and (gpu.major, gpu.minor) < least_capability:
            continue
        if num_bytes <= gpu.total_memory - RESERVED_BYTES:
            return name
    usable = profiles()[SEVERAL_OF].total_memory - RESERVED_BYTES
    return f"at least {math.ceil(num_bytes / usable)} x {SEVERAL_OF}"


def num_gpus(num_bytes: int, gpu: CudaProfile) -> int:
    """The number of GPUs, a power of two, that together have room for so many bytes."""
    number = 1
    while num_bytes > number * (gpu.total_memory - RESERVED_BYTES):
        number *= 2
    return number
