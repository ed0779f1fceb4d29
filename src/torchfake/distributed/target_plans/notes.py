"""Notes on a plan of a TARGET: what was assumed, what became of the inputs, what is padded.

Input: a model, a strategy, sizes. Output: texts. Invariant: a note says what a number rests on;
what it suggests is tried before it is named as a remedy.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import nn

from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.strategy import Strategy
from torchfake.distributed.target_plans.batch import Batch
from torchfake.inspect.contents.described import described_format, described_weights
from torchfake.inspect.records.units import bytes_text
from torchfake.inspect.targets.build import build
from torchfake.inspect.targets.target import Target
from torchfake.inspect.targets.transformers_models import BUILT_UNQUANTIZED


class Padding(NamedTuple):
    """What FSDP2 pads, and what to try in place of it."""

    notes: tuple[str, ...] = ()
    remedies: tuple[dict[str, Any], ...] = ()  # options of a plan


_MUCH = 1.5
"""Gathered bytes that are so many times those of the model are noted."""


def padding_of(module: nn.Module, strategy: Strategy) -> Padding:
    """FSDP2 shards along the first dim, and pads parameters that have fewer rows than there are
    ranks when it gathers them: stacks of experts on many ranks.
    """
    axes = strategy.axes
    ranks = math.prod(axes.sizes[name] for name in axes.sharding)
    if strategy.engine != "fsdp2" or axes.expert_ranks > 1:
        return Padding()
    sharded = [p for p in module.parameters() if p.dim() and len(p)]
    times = sum(p.nbytes * max(ranks / len(p), 1) for p in sharded)
    times /= max(sum(p.nbytes for p in sharded), 1)
    if times < _MUCH:
        return Padding()
    largest = max((p for p in sharded if len(p) < ranks), key=lambda p: p.nbytes)
    rows, are_experts = len(largest), largest.dim() == 3 and bool(getattr(module, "ep_plan", None))
    instead = f"; --mesh ep={rows} distributes experts instead" * are_experts
    note = (
        f"FSDP2 pads parameters with {rows:,} rows to the {ranks:,} ranks that shard them: "
        f"{times:.1f} times the model's bytes are gathered{instead}"
    )
    return Padding((note,), ({"mesh": f"ep={rows}"},) * are_experts)


def of_target(target: Target, weights: str | None) -> tuple[str, ...]:
    """The notes on a target; on the format in its config, unless the user gives another one."""
    others = tuple(note for note in target.notes_of_config if note != BUILT_UNQUANTIZED)
    if weights is not None or not target.quantization:
        return others
    module = build(target).module
    name, found = described_format(module), described_weights(module)
    size = "" if found is None else f", {bytes_text(found.num_bytes)} of weights,"
    return (*others, f"the {name} of its quantization_config{size} was not counted")


def of_experts(axes: MeshAxes) -> tuple[str, ...]:
    """What is assumed of experts that are distributed."""
    if axes.expert_ranks < 2:
        return ()
    return (
        "assumed: every expert gets the same number of tokens (the router's choice is unknown)",
    )


def of_written(written: int | None, sizes: Batch) -> tuple[str, ...]:
    """What became of the batch size in inputs that are given as text."""
    if written is None:
        return ()
    if written == sizes.micro:
        return (f"the {written:,} in --input is the batch of each data rank",)
    return (
        f"the {written:,} in --input is replaced by {sizes.micro:,}, the batch of each data rank",
    )


def of_micro_batches(sizes: Batch, num_run: int) -> tuple[str, ...]:
    """How many micro-batches were run, if not all."""
    if num_run == sizes.accumulate:
        return ()
    return (f"{num_run} of {sizes.accumulate} micro-batches were run; the others count alike",)
