"""Runs one rank of each kind; a rank that waits for a message is run after its sender.

Input: a job. Output: the memory and communication of each rank. Invariant: each rank's run is
complete, and received the messages of other ranks; ranks that wait for each other are an error.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from torchfake.distributed.layout import Layout
from torchfake.distributed.ranks.mailboxes import Mailboxes, WaitsForRank
from torchfake.distributed.ranks.rank_plan import RankPlan
from torchfake.distributed.ranks.run_rank import Job, RankRun, run_rank
from torchfake.distributed.ranks.shard_sizes import equal_ranks
from torchfake.errors import InputsError


class Ranks:
    """The ranks that were run."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._boxes = Mailboxes()
        self.runs: dict[int, RankRun] = {}

    def run(self, ranks: Iterable[int]) -> None:
        """Run ranks, and the ranks that they wait for.

        Raises:
            InputsError: if ranks wait for each other, or a function of the job fails.
        """
        waiting: dict[int, WaitsForRank | None] = {r: None for r in ranks if r not in self.runs}
        while waiting:
            rank = self._next(waiting)
            del waiting[rank]
            try:
                self.runs[rank] = run_rank(self._job, rank, self._boxes.of_rank(rank))
            except WaitsForRank as waits:
                waiting[rank] = waits
                source = waits.channel[0]
                if source not in self.runs:
                    waiting.setdefault(source, None)
        self._boxes.check_all_received(set(self.runs))

    def first_of(self, ranks: list[int]) -> RankRun:
        """The run of the first of these ranks that was run."""
        return next(self.runs[rank] for rank in ranks if rank in self.runs)

    def _next(self, waiting: dict[int, WaitsForRank | None]) -> int:
        """A rank whose awaited message has been sent, or that waits for none."""
        for rank, waits in waiting.items():
            if waits is None or self._boxes.has(waits):
                return rank
        texts = (f"rank {rank} for {waits}" for rank, waits in waiting.items())
        raise InputsError(
            f"ranks wait forever: {'; '.join(texts)}. Each receive needs a send before it: give "
            "all ranks the same schedule, stages and micro-batches"
        )


def run_all(job: Job) -> list[RankPlan]:
    """Run the first rank of each group of equal ranks, for the whole group.

    The groups are computed again after each run, since a run may reveal more uneven DTensors, or
    more ranks that exchange messages.
    """
    ranks, of_axes = Ranks(job), zip(job.layout.axes, job.layout.coordinates.T, strict=True)
    shape_ids: dict[Any, np.ndarray[Any, Any]] = {
        name: coordinates for name, coordinates in of_axes if name in job.unlike_axes
    }
    while True:
        for run in ranks.runs.values():
            shape_ids.update(run.shape_ids)
        groups = equal_ranks(job.layout, shape_ids.values())
        missing = [group[0] for group in groups if not ranks.runs.keys() & set(group)]
        if not missing:
            return [_plan_of(ranks.first_of(group), group) for group in groups]
        ranks.run(missing[:1])


def requested(ranks: Iterable[int], layout: Layout) -> tuple[int, ...]:
    """Check the requested ranks, and return them in ascending order."""
    last = layout.num_ranks - 1
    try:
        requested = sorted({operator.index(rank) for rank in ranks if not isinstance(rank, bool)})
    except TypeError:
        requested = []
    if not requested or requested[0] < 0 or requested[-1] > last:
        raise InputsError(f"ranks={ranks!r}: give several, such as [0, {last}], from 0 to {last}")
    return tuple(requested)


def run_each(job: Job, requested: Iterable[int]) -> list[RankPlan]:
    """Run each of the requested ranks; each stands for itself only."""
    ranks = Ranks(job)
    ranks.run(requested)
    return [_plan_of(ranks.runs[rank], [rank]) for rank in requested]


def _plan_of(run: RankRun, ranks: list[int]) -> RankPlan:
    return RankPlan(tuple(ranks), run.traffic, run.estimate)
