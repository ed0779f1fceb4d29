"""The steps of all stages of a pipeline, timed together, since stages wait for each other.

Input: the plans of the ranks of a mesh, one rank of each kind. Output: these plans, with schedules.
Invariant: a message ends, for both of its ends, once both have reached it and it has been sent;
ranks that wait for each other forever are refused.

Ranks that exchange messages differ along some axes of the mesh, the axes of stages. The ranks with
equal coordinates along all other axes form a line, with one rank of each stage. Lines of equal
kinds are timed once; if a kind of rank is in several lines, its slowest schedule counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchfake.distributed.layout import Layout
from torchfake.distributed.ranks.rank_plan import RankPlan, in_node_of
from torchfake.errors import InputsError
from torchfake.inspect.timing.collectives import Links
from torchfake.inspect.timing.commands import EXCHANGE
from torchfake.inspect.timing.machine import Machine, machine_of
from torchfake.inspect.timing.meetings import Meetings
from torchfake.inspect.timing.schedule import Schedule, of_machine


def timed_together(by_ranks: list[RankPlan], layout: Layout, links: Links | None) -> list[RankPlan]:
    """The plans, with joint schedules if ranks send each other messages and the speed of the GPU is
    known.

    Raises:
        InputsError: if ranks wait for each other forever.
    """
    axes = _axes_of_messages(by_ranks, layout)
    slowest: dict[int, Schedule] = {}
    for line in _lines(by_ranks, layout, axes) if axes else []:
        for kind, schedule in _timed(by_ranks, layout, links, line, axes).items():
            if kind not in slowest or slowest[kind].seconds < schedule.seconds:
                slowest[kind] = schedule
    return [replace(found, joint_schedule=slowest.get(i)) for i, found in enumerate(by_ranks)]


def _axes_of_messages(by_ranks: Sequence[RankPlan], layout: Layout) -> list[int]:
    """The axes along which the sender and the receiver of any message differ."""
    ends = {
        message.ends
        for found in by_ranks
        for command in found.estimate.commands
        if command.what == EXCHANGE
        for message in command.exchanged
        if message.ends is not None
    }
    pairs = np.array(sorted(ends), dtype=np.int64).reshape(-1, 2)
    differs = layout.coordinates[pairs[:, 0]] != layout.coordinates[pairs[:, 1]]
    return [int(axis) for axis in np.flatnonzero(differs.any(axis=0))]


Place = tuple[int, ...]
"""The coordinates of a rank along the axes of stages."""


def _lines(by_ranks: Sequence[RankPlan], layout: Layout, axes: list[int]) -> list[dict[Place, int]]:
    """The different lines; each gives the kind of rank of each stage."""
    kinds = {rank: kind for kind, found in enumerate(by_ranks) for rank in found.ranks}
    others = [axis for axis in range(len(layout.axes)) if axis not in axes]
    lines: dict[Any, dict[Place, int]] = {}
    for rank, own in enumerate(layout.coordinates):
        if rank in kinds:
            line = lines.setdefault(tuple(own[others].tolist()), {})
            line[tuple(own[axes].tolist())] = kinds[rank]
    return list({tuple(sorted(line.items())): line for line in lines.values()}.values())


def _timed(
    by_ranks: Sequence[RankPlan],
    layout: Layout,
    links: Links | None,
    line: dict[Place, int],
    axes: list[int],
) -> dict[int, Schedule]:
    """The schedule of each kind of rank in a line, timed together."""

    def kind_of(rank: int) -> int | None:
        return line.get(tuple(layout.coordinates[rank][axes].tolist()))

    machines = _machines(by_ranks, layout, links, line, kind_of)
    if len(machines) < len(set(line.values())):
        return {}
    commands = {kind: by_ranks[kind].estimate.commands for kind in machines}
    has_moved = True
    while has_moved:
        has_moved = any(machine.run(commands[kind]) for kind, machine in machines.items())
    stuck = {k: m for k, m in machines.items() if not m.is_done(commands[k])}
    if stuck:
        raise InputsError(_deadlock(by_ranks, layout, stuck))
    found = {kind: of_machine(machine) for kind, machine in machines.items()}
    last = max(schedule.seconds for schedule in found.values())
    return {kind: of_machine(machine, last) for kind, machine in machines.items()}


def _machines(
    by_ranks: Sequence[RankPlan],
    layout: Layout,
    links: Links | None,
    line: dict[Place, int],
    kind_of: Callable[[int], int | None],
) -> dict[int, Machine]:
    begun: Any = {}
    made = {}
    for kind in sorted(set(line.values())):
        gpu = by_ranks[kind].estimate.gpu
        if gpu is not None:
            meetings = Meetings(begun, kind, kind_of)
            made[kind] = machine_of(gpu, links, in_node_of(layout, links), meetings=meetings)
    return {kind: machine for kind, machine in made.items() if machine is not None}


def _deadlock(by_ranks: Sequence[RankPlan], layout: Layout, stuck: dict[int, Machine]) -> str:
    texts = []
    for kind, machine in stuck.items():
        message = machine.unmet()
        if message is not None and message.ends is not None:
            own = by_ranks[kind].ranks[0]
            is_sent = message.collective == "send"
            does = f"{'sends to' if is_sent else 'receives from'} rank {message.ends[is_sent]}"
            texts.append(f"rank {own} ({layout.text_of(own)}) {does}")
    return (
        f"ranks wait for each other forever: {', '.join(texts)}, and none of these is answered. "
        "Have both ends of each message begin it in the same order, or together "
        "(batch_isend_irecv)"
    )
