"""A plan of a TARGET as rows: the answer first, then its assumptions.

Input: a TargetPlan. Output: blocks of rows. Invariant: its first line says whether it fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfake.distributed.parallelize.checkpoints import counts_of
from torchfake.distributed.parallelize.mesh_axes import larger
from torchfake.distributed.parallelize.pipeline_stages import schedule_named
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.distributed.text import (
    faster_in,
    mfu_text,
    network_line,
    plan_blocks,
    plan_error_text,
    plan_lines,
    step_text,
    verdict_on_plan,
)
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text, number_text
from torchfake.inspect.show.rows import Block, Line
from torchfake.inspect.show.step_time import room_text
from torchfake.inspect.show.verdict import WITHIN_ERROR, global_batch_text
from torchfake.inspect.timing.collectives import gpus_per_node

_PRECISIONS = {
    "mixed": "parameters float32, computation bfloat16, reduction float32",
    "bf16": "parameters and computation bfloat16",
    "fp32": "all float32",
}
SHORT_PRECISIONS = {"mixed": "mixed precision"}
"""What a precision is called in a verdict, if not by its name."""

_KEPT = {"selective": "attention and every second matrix product", "full": "only {} inputs"}
"""What a block keeps for backward, by the name of how it is checkpointed."""


@shown.register
def _(found: TargetPlan, *, depth: int | None = None) -> list[Block]:
    lines = *_answer(found), *_time(found), *_assumptions(found), *plan_lines(found.plan)
    code = [Block(code=found.shown_code)] if found.shows_code else []
    return [*plan_blocks(found.plan, lines), *code]


def _answer(found: TargetPlan) -> Iterator[Line]:
    """Whether the model fits, and if not, the options with which it does."""
    batch = found.batch
    of_all = f"batch {batch.micro:,} per data rank{global_batch_text(batch.size, batch.accumulate)}"
    if found.strategy.checkpoint != "none":
        of_all += f", checkpoint {found.strategy.checkpoint}"
    precision = SHORT_PRECISIONS.get(found.strategy.precision, found.strategy.precision)
    precision += f" with {found.weights} weights" * (found.weights is not None)
    trained = "LoRA adapters" * (found.lora is not None)
    yield verdict_on_plan(found.plan, of_all, precision, trained)
    if found.remedy:
        memory = ""
        if size := found.remedy_cpu_bytes:
            ranks = min(found.plan.layout.num_ranks, gpus_per_node(found.plan.links))
            of_node = f", {bytes_text(ranks * size)} for {ranks} ranks of a node" * (ranks > 1)
            memory = f", with {bytes_text(size)} of CPU memory per rank{of_node}"
        fits = "fits"
        if found.remedy_headroom_bytes is not None:
            spare = bytes_text(found.remedy_headroom_bytes)
            fits = f"may fit: {spare} to spare, {WITHIN_ERROR}"
        yield "  try", f"{found.remedy}, which {fits}{memory}"


def _time(found: TargetPlan) -> Iterator[Line]:
    """The time of a step, also as tokens per second, and the error of such estimates."""
    yield "step time", step_text(found.plan)
    if found.time is None:
        return
    yield "  error", plan_error_text(found.plan)
    yield network_line(found.plan)
    yield from faster_in(found.plan)
    at_most = "at most " * found.plan.is_lower_bound
    mfu = mfu_text(found.plan)
    rate = f"{at_most}{rate_text(found)}{room_text(found.plan.fit)}"
    yield "throughput", rate + f", MFU {mfu}" * bool(mfu)


def rate_text(found: TargetPlan) -> str:
    """The tokens, or samples, of a second in the time that is known."""
    seconds = found.plan.step_seconds_at_least
    samples = found.batch.size / seconds if seconds else 0.0
    if found.seq is None:
        rounded = float(f"{samples:.3g}")
        shown = f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"
        return f"{shown} samples/s on all GPUs"
    return f"{samples * found.seq / found.plan.layout.num_ranks:,.0f} tokens/s on each GPU"


def _assumptions(found: TargetPlan) -> Iterator[Line]:
    """The assumptions behind the answer."""
    batch, strategy = found.batch, found.strategy
    tokens = "" if found.seq is None else f" of {found.seq:,} tokens"
    parts = f"{batch.micro} on each of {batch.data_ranks} data ranks"
    if batch.accumulate > 1:
        parts = f"{batch.accumulate} micro-batches of {parts}"
    yield "batch", f"{batch.size:,}{tokens}: {parts}"
    yield "layout", ", ".join(_layout(found)) or "one GPU"
    precision = f"{strategy.precision}: {_PRECISIONS[strategy.precision]}"
    adapters = "; adapters float32, as PEFT makes them" * (found.lora is not None)
    yield "precision", f"{precision}{adapters}; optimizer {found.optimizer}"
    yield "checkpoint", _checkpoint_text(strategy.checkpoint)
    yield from (("note", note) for note in found.notes)


def _checkpoint_text(given: str | int) -> str:
    """A description of ``checkpoint=``: the activations of blocks that are kept."""
    if given in _KEPT:
        return f"{given}: each block keeps {_KEPT[str(given)].format('its')}"
    counts = counts_of(given) or {}
    some = [
        f"of {number_text(n, 'block')}, {_KEPT[k].format('the')}; "
        for k, n in counts.items()
        if k in _KEPT
    ]
    others = "of the others, all activations" if some else "all activations are kept"
    return f"{given}: {''.join(some)}{others}"


def _layout(found: TargetPlan) -> Iterator[str]:
    """The engines, each with the axes that it works along."""
    strategy, axes = found.strategy, found.strategy.axes
    sizes = larger(axes.sizes)

    def along(*names: str | None) -> str:
        return "along " + " x ".join(f"{name} {sizes[name]}" for name in names if name in sizes)

    if strategy.engine == "ddp":
        zero = ", each rank a part of the optimizer (ZeRO-1)" * (strategy.stage == 1)
        yield f"DDP {along(*sizes)}{zero}"
    elif axes.sharding:
        kind = "FSDP1" if strategy.engine == "fsdp1" else "FSDP2"
        if axes.replicate in sizes:
            kind = "HSDP of FSDP1" if strategy.engine == "fsdp1" else "HSDP"
        zero = ", which keeps what it gathers (ZeRO-2)" * (strategy.stage != 3)
        yield f"{kind} {along(axes.replicate, *axes.sharding)}{zero}"
    elif axes.replicate in sizes:
        yield f"replicas {along(axes.replicate)} (as DDP)"
    if axes.tensor in sizes:
        kinds = "tensor and sequence" if strategy.sequence_parallel else "tensor"
        yield f"{kinds} parallel {along(axes.tensor)}"
    if axes.pipeline in sizes and strategy.schedule_name is not None:
        name = schedule_named(strategy.schedule_name).class_name
        yield f"pipeline {along(axes.pipeline)} ({name})"
    if axes.context in sizes:
        yield f"context parallel {along(axes.context)}"
    if axes.experts in sizes:
        yield f"experts {along(*(n for n in sizes if n in (axes.experts, axes.tensor)))}"
    if strategy.offload:
        yield "shards on the CPU"
