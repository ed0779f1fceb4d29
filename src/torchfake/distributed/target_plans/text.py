"""A plan of a TARGET as rows: the answer first, then its assumptions.

Input: a TargetPlan. Output: blocks of rows. Invariant: its first line says whether it fits.
"""

from __future__ import annotations

from torchfake.distributed.parallelize.checkpoints import counts_of
from torchfake.distributed.parallelize.mesh_axes import MeshAxes, larger
from torchfake.distributed.parallelize.pipeline_schedules import schedule_named
from torchfake.distributed.target_plans.batch import Batch
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.distributed.text import (
    plan_block,
    plan_lines,
    plan_tables,
    step_text,
    untimed_gpu_lines,
    verdict_on_plan,
)
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text
from torchfake.inspect.show.rows import Block, Line
from torchfake.inspect.timing.compared import IMAGES, LANGUAGE, error_text

_PRECISIONS = {
    "mixed": "parameters float32, computation bfloat16, reduction float32",
    "bf16": "all bfloat16",
    "fp32": "all float32",
}
SHORT_PRECISIONS = {"mixed": "mixed precision"}
"""What a precision is called in a verdict, if not by its name."""

_CHECKPOINTS = {
    "none": "all activations are kept",
    "selective": "each block keeps attention and every second matrix product",
    "full": "each block keeps only its inputs",
}

_OF_SOME = {
    "none": "all activations are kept",
    "selective": "attention and every second matrix product",
    "full": "only the inputs",
}

_SAID_ABOVE = ("step time", "  model FLOPs")
"""Lines of a plan's text that the answer replaces."""


@shown.register
def _(found: TargetPlan, *, depth: int | None = None) -> list[Block]:
    of_plan = plan_lines(found.plan)
    precision = SHORT_PRECISIONS.get(found.strategy.precision, found.strategy.precision)
    verdict = verdict_on_plan(found.plan, batch_text(found.batch), precision)
    lines = answer_lines(found, verdict)
    lines += time_lines(found) + assumption_lines(found)
    lines += [line for line in of_plan if line[0] not in _SAID_ABOVE]
    lines = [(name, text.replace("._checkpoint_wrapped_module", "")) for name, text in lines]
    code = [Block(code=found.shown_code)] if found.shows_code else []
    return [plan_block(found.plan, lines), *plan_tables(found.plan), *code]


def answer_lines(found: TargetPlan, verdict: list[Line]) -> list[Line]:
    """Whether the model fits, and if not, the options with which it does."""
    if not found.remedy:
        return verdict
    with_memory = ""
    if found.remedy_cpu_bytes:
        with_memory = f", with {bytes_text(found.remedy_cpu_bytes)} of CPU memory per rank"
    return [*verdict, ("  try", f"{found.remedy}, which fits{with_memory}")]


def batch_text(batch: Batch) -> str:
    """The batch of a data rank and of all: ``batch 2 per data rank, global batch 64 (4 ...)``."""
    made_of = f" ({batch.accumulate:,} micro-batches)" if batch.accumulate > 1 else ""
    return f"batch {batch.micro:,} per data rank, global batch {batch.size:,}{made_of}"


def time_lines(found: TargetPlan) -> list[Line]:
    """The time of a step, also as tokens per second, and the error of such estimates."""
    time = found.time
    if time is None:
        return untimed_gpu_lines(found.plan.gpu)
    is_bound = found.plan.is_lower_bound
    lines = [("step time", step_text(time, is_lower_bound=is_bound))]
    lines += [] if is_bound else [("  error", _error(found))]
    mfu = "" if found.mfu is None else f", MFU {100 * found.mfu:.0f} %"
    return [*lines, ("throughput", "at most " * is_bound + rate_text(found) + mfu)]


def _error(found: TargetPlan) -> str:
    """The error of times of models of this kind on this GPU."""
    is_training = found.plan.mode == "training"
    kind = IMAGES if found.seq is None else LANGUAGE
    return error_text(found.plan.gpu, kind, is_training=is_training)


def rate_text(found: TargetPlan) -> str:
    """The tokens, or samples, of a second in the time that is known."""
    seconds = found.plan.step_seconds_at_least
    samples = found.batch.size / seconds if seconds else 0.0
    if found.seq is None:
        rounded = float(f"{samples:.3g}")
        shown = f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"
        return f"{shown} samples/s on all GPUs"
    return f"{samples * found.seq / found.plan.layout.num_ranks:,.0f} tokens/s on each GPU"


def assumption_lines(found: TargetPlan) -> list[Line]:
    """The assumptions behind the answer."""
    batch, strategy = found.batch, found.strategy
    tokens = "" if found.seq is None else f" of {found.seq:,} tokens"
    parts = f"{batch.micro} on each of {batch.data_ranks} data ranks"
    if batch.accumulate > 1:
        parts = f"{batch.accumulate} micro-batches of {parts}"
    optimizer = f"optimizer {found.optimizer}"
    lines = [
        ("batch", f"{batch.size:,}{tokens}: {parts}"),
        ("layout", _layout(found)),
        ("precision", f"{strategy.precision}: {_PRECISIONS[strategy.precision]}; {optimizer}"),
        ("checkpoint", checkpoint_text(strategy.checkpoint)),
    ]
    return lines + [("note", note) for note in found.notes]


def checkpoint_text(given: str | int) -> str:
    """A description of ``checkpoint=``: the activations of blocks that are kept."""
    counts = counts_of(given)
    if not counts:
        kind = str(given) if given in _CHECKPOINTS else "none"
        return f"{given}: {_CHECKPOINTS[kind]}"
    parts = [f"of {n} {'block' if n == 1 else 'blocks'}, {_OF_SOME[k]}" for k, n in counts.items()]
    return f"{given}: {'; '.join(parts)}; of the others, all activations"


def _layout(found: TargetPlan) -> str:
    """The layout as text: the engines, and the axes that each works along."""
    strategy, axes = found.strategy, found.strategy.axes
    sizes = larger(axes.sizes)
    parts = []
    if strategy.engine == "ddp":
        zero = ", each rank a part of the optimizer (ZeRO-1)" if strategy.stage == 1 else ""
        along = " x ".join(f"{name} {n}" for name, n in sizes.items())
        parts.append(f"DDP along {along}{zero}")
    elif axes.sharding:
        kind = "FSDP1" if strategy.engine == "fsdp1" else "FSDP2"
        if axes.replicate in sizes:
            kind = "HSDP of FSDP1" if strategy.engine == "fsdp1" else "HSDP"
        names = [name for name in (axes.replicate, *axes.sharding) if name in sizes]
        along = " x ".join(f"{name} {sizes[name]}" for name in names)
        zero = "" if strategy.stage == 3 else ", which keeps what it gathers (ZeRO-2)"
        parts.append(f"{kind} along {along}{zero}")
    elif axes.replicate in sizes:
        parts.append(f"replicas along {axes.replicate} {sizes[axes.replicate]} (as DDP)")
    if axes.tensor in sizes:
        kinds = "tensor and sequence" if strategy.sequence_parallel else "tensor"
        parts.append(f"{kinds} parallel along {axes.tensor} {sizes[axes.tensor]}")
    if axes.pipeline in sizes and strategy.schedule_name is not None:
        name = schedule_named(strategy.schedule_name).class_name
        parts.append(f"pipeline along {axes.pipeline} {sizes[axes.pipeline]} ({name})")
    if axes.context in sizes:
        parts.append(f"context parallel along {axes.context} {sizes[axes.context]}")
    if axes.experts in sizes:
        parts.append(f"experts along {_experts_along(axes, sizes)}")
    if strategy.offload:
        parts.append("shards on the CPU")
    return ", ".join(parts) or "one GPU"


def _experts_along(axes: MeshAxes, sizes: dict[str, int]) -> str:
    """The axes that experts are distributed over, including tensor parallelism, as text."""
    names = [name for name in sizes if name in (axes.experts, axes.tensor)]
    return " x ".join(f"{name} {sizes[name]}" for name in names)
