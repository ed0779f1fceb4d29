"""Memory and time of one run of a layout, in total and of each block.

Input: a plan that was run. Output: a :class:`Measured`, plain numbers. Invariant: the bytes of a
block are those of its activations in the run, the seconds those of recomputed kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchfake.distributed.ranks.rank_plan import RankPlan
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.inspect.storages.lifetimes import CATEGORIES, PHASES


class OfBlock(NamedTuple):
    """The memory and recomputation of one block."""

    kept_bytes: int  # activations of a micro-batch, from the forward to the backward pass
    repeated_seconds: float  # recomputation in a step


class Measured(NamedTuple):
    """The memory and time of each rank, and of each block."""

    peak_bytes: int
    reserved_bytes: int
    step_seconds: float | None
    exposed_seconds: float = 0.0  # communication while nothing is computed
    state_bytes: int = 0  # parameters, gradients and optimizer state
    parameter_bytes: int = 0
    blocks: tuple[OfBlock, ...] = ()


def measured(found: TargetPlan, names: Sequence[str] = ()) -> Measured:
    """The memory and time of a plan's ranks, and of the blocks `names`."""
    plan, highest = found.plan, found.plan.highest
    assert plan.peak_reserved_bytes is not None
    held = highest.most_bytes
    state = sum(held[name] for name in ("parameters", "gradients", "optimizer state"))
    return Measured(
        plan.peak_bytes,
        plan.peak_reserved_bytes,
        found.plan.step_seconds_at_least,
        found.time.exposed_seconds if found.time else 0.0,
        state,
        held["parameters"],
        _of_blocks(found, names),
    )


def _of_blocks(found: TargetPlan, names: Sequence[str]) -> tuple[OfBlock, ...]:
    kept = _kept_bytes(found.plan.highest)
    repeated = _repeated_seconds(found)
    return tuple(OfBlock(int(_of(name, kept)), _of(name, repeated)) for name in names)


def _of(block: str, by_module: dict[str, float]) -> float:
    inner = f"{block}."
    return sum(n for name, n in by_module.items() if name == block or name.startswith(inner))


def _kept_bytes(ranks: RankPlan) -> dict[str, float]:
    """Bytes of activations at a step's first backward pass, by the module that made them."""
    lives = ranks.estimate.lives
    forward, backward = (lives.phase == PHASES.index(name) for name in ("forward", "backward"))
    if not backward.any():
        return {}
    turn = lives.allocated_at[backward].min()
    is_kept = forward & (lives.allocated_at < turn) & (lives.freed_at > turn)
    sizes: dict[str, float] = {}
    for i in np.flatnonzero(is_kept & (lives.category == CATEGORIES.index("activations"))):
        sizes[lives.module[i]] = sizes.get(lives.module[i], 0) + int(ranks.estimate.sizes[i])
    return sizes


def _repeated_seconds(found: TargetPlan) -> dict[str, float]:
    """Seconds of recomputed kernels in a step of all micro-batches, by module."""
    schedule = found.plan.schedule
    if schedule is None:
        return {}
    seconds: dict[str, float] = {}
    took = schedule.ends - schedule.begins
    for command, one in zip(schedule.commands, took, strict=True):
        if command.place.is_recomputation and command.work is not None:
            module = command.place.module
            seconds[module] = seconds.get(module, 0.0) + float(one)
    times = found.batch.accumulate / found.estimate.step.accumulate
    return {name: n * times for name, n in seconds.items()}
