"""The lines about a step: what is run, its memory, what it serves.

Input: an estimate. Output: text; lines, each a name and a text. Invariant: each line names what its
number is of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchfake.inspect.arithmetic.uncounted import uncounted_line
from torchfake.inspect.contents.experts import Active
from torchfake.inspect.contents.schemes import scheme_named
from torchfake.inspect.memory.estimate_record import Estimate, Peak
from torchfake.inspect.memory.fit import Fit, verdict_on
from torchfake.inspect.records.units import (
    bytes_text,
    compared_bytes,
    count_text,
    number_text,
    rounded_text,
)
from torchfake.inspect.serving.cache_record import STATES
from torchfake.inspect.show.rows import Block, Line, as_lines
from torchfake.inspect.show.step_time import time_lines
from torchfake.inspect.show.verdict import counted_text
from torchfake.inspect.steps.adapters import adapters_text
from torchfake.inspect.steps.backward import SUM_OF_OUTPUT


def step_block(peak: Peak, lines: Iterable[Line]) -> Block:
    """The lines about a step, with a bar for each category of memory at its peak."""
    return as_lines(
        lines, {n: size / max(peak.num_bytes, 1) for n, size in peak.by_category.items()}
    )


def step_lines(found: Estimate, fit: Fit | None = None, which: str = "") -> Iterator[Line]:
    """The lines of an estimate, each a name and a text.

    Args:
        found: the estimate.
        fit: the verdict, if there is one.
        which: which of several GPUs it is for, as text.
    """
    yield "step", _step_text(found) + (f", {which}" if which else "")
    if found.step.weights is not None:
        scheme = scheme_named(found.step.weights)
        packing = f", packed as {scheme.packing}" if scheme.packing else ""
        yield "weights", f"{found.step.weights}: {scheme.library}{packing}"
    yield "adapters", found.step.peft and adapters_text(found.step.peft)
    remedy = ", which has none; example_inputs(..., labels=True) or loss= gives another one"
    yield "loss", found.loss and found.loss + remedy * (found.loss == SUM_OF_OUTPUT)
    yield "warning", found.counted.warnings
    yield "peak", peak_text(found)
    yield from ((f"  {name}", bytes_text(n)) for name, n in found.peak.by_category.items())
    yield "model", _model_text(found)
    yield from _serving_lines(found)
    yield "line", _FOLDER_OF_PACKAGES.sub("", found.peak.line)
    fit = fit or verdict_on(found)
    yield "reserved", _reserved_text(found, fit)
    if found.first_step_peak_bytes < found.peak_bytes:
        yield "first step", bytes_text(found.first_step_peak_bytes)
    yield from _sequence_lines(found)
    yield from time_lines(found, fit)
    yield from elsewhere_lines(found)
    yield uncounted_line(found.uncounted)
    yield "left out", found.left_out
    yield "answered", found.answers


def elsewhere_lines(found: Estimate) -> Iterator[Line]:
    """The memory of other devices, if it is more than a few numbers take."""
    for name, size in found.elsewhere.items():
        if size > _FEW_BYTES:
            yield "CPU memory" if name == "cpu" else f"on {name}", bytes_text(size)


_FEW_BYTES = 1 << 20

_FOLDER_OF_PACKAGES = re.compile(r"^.*[/\\](site|dist)-packages[/\\]")


def _model_text(found: Estimate) -> str:
    """The class of the model and the number of its parameters; "" for a step of several."""
    if found.subject.program is not None:
        return ""
    total = sum(p.numel() for p in found.subject.module.parameters())
    active = "" if found.active is None else f", active {active_text(found.active)}"
    return f"{found.class_name}, {count_text(total)} parameters{active}"


def active_text(active: Active) -> str:
    """The number of parameters used for one token, and the numbers of experts."""
    experts = " or ".join(active.experts)
    return f"{rounded_text(active.num_parameters)}, {experts} experts for each token"


def phase_text(phase: str) -> str:
    """When the memory of a phase is held."""
    name = f"in the {phase}" if phase in ("prefill", "decode") else f"in the {phase} pass"
    return {"optimizer": "in the optimizer's step", "start": "before it begins"}.get(phase, name)


def _step_text(found: Estimate) -> str:
    """The kind of step and its device; unless a GPU is named, which has a verdict,
    also its sizes.
    """
    where = found.device if found.gpu is None else f"{found.device}, {found.gpu.name}"
    where += ", which is assumed: gpu= names another" * found.is_gpu_assumed
    if found.mode == "training" and found.subject.device is None:
        where += ", as no gpu is named" * (found.device == "cpu")
    if found.subject.gpu is not None:
        return f"{found.counted.does} on {where}"
    does, _, sizes = counted_text(found).partition(", ")
    return f"{does} on {where}" + (f"; {sizes}" if sizes else "")


def _reserved_text(found: Estimate, fit: Fit | None) -> str:
    """The reserved memory: as much as the verdict says, which may be less on a GPU that is full.

    What the peak is less is shown, not ``fragmentation_bytes``: the allocator may reach the most
    reserved memory at a moment at which hardly any is allocated.
    """
    reserved = found.peak_reserved_bytes
    if reserved is None:
        return ""
    if fit is not None and fit.peak_reserved_bytes != reserved:
        within = f"{compared_bytes(fit.peak_reserved_bytes)} by the caching allocator"
        return f"{within}, {bytes_text(reserved)} where there is room"
    text = f"{compared_bytes(reserved)} by the caching allocator"
    more = found.reserved_beyond_peak_bytes or 0
    return f"{text}, {bytes_text(more)} more than the peak" if more > 0 else text


def peak_text(found: Estimate) -> str:
    """The peak of a step, and where it is reached."""
    peak, size = found.peak, bytes_text if found.gpu is None else compared_bytes
    where = f", in {peak.module}" if peak.module else ""
    return f"{size(peak.num_bytes)} {phase_text(peak.phase)}{where}{peak.op and f', {peak.op}'}"


def _serving_lines(found: Estimate) -> Iterator[Line]:
    """The lines about a serving workload, and what each kind of layer caches for it."""
    serve, cache = found.step.serve, found.cache
    if serve is None or cache is None:
        return
    prefill = "" if serve.prefill is None else f", {serve.prefill:,} tokens in a pass"
    prompts = f"prompts of {serve.prompt_length:,}{prefill}"
    yield "serves", f"{number_text(serve.users, 'user')} x {serve.context:,} tokens, {prompts}"
    dtype = "" if serve.dtype_name is None else f" of {serve.dtype_name}"
    each = f"{bytes_text(round(cache.bytes_per_token))} per token"
    if cache.name == STATES:
        each = f"{bytes_text(cache.num_bytes // cache.users)} per user, whatever the context"
    all_layers = f"{compared_bytes(cache.num_bytes)}, {each}, {cache.name}{dtype}"
    by_kind = (
        f"{number_text(count, 'layer')}, {kind}: {bytes_text(size)}"
        for kind, (count, size) in cache.by_kind.items()
    )
    yield "cache", (all_layers, *by_kind)


def _sequence_lines(found: Estimate) -> Iterator[Line]:
    """What was run besides the step that is shown: steps of other lengths, and an evaluation."""
    if lengths := found.step.lengths:
        of = f"{min(lengths):,} to {max(lengths):,} tokens"
        shown = f"the peak is that of {found.counted.seq:,}, reserved that of all in this order"
        yield "lengths", f"{len(lengths):,} steps of {of}; {shown}"
    if found.evaluation_peak_bytes is not None:
        peak, batch = bytes_text(found.evaluation_peak_bytes), found.step.evaluation
        yield "evaluation", f"a peak of {peak} with batch {batch:,}, in training's memory"
