"""The record of a plan: what every rank of a mesh holds and sends in a step, and how long it takes.

Input: what each kind of rank was found to take. Output: a :class:`Plan`, plain data. Invariant:
each rank is in one of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.distributed.layout import Layout
from torchfake.distributed.ranks.rank_plan import KINDS, SHOWN_ORDER, RankPlan
from torchfake.distributed.ranks.rank_tracker import Traffic
from torchfake.distributed.ranks.run_rank import Job
from torchfake.errors import InputsError
from torchfake.inspect.memory.fit import Fit
from torchfake.inspect.memory.search import reserved_on
from torchfake.inspect.records.record import Record, data_frame
from torchfake.inspect.timing.collectives import Links
from torchfake.inspect.timing.hardware import utilization
from torchfake.inspect.timing.schedule import Schedule


@dataclass(frozen=True, repr=False)
class Plan(Record):
    """The memory and communication of every rank of a mesh in a step."""

    class_name: str  # of the module, before it was parallelized
    mode: str  # "training", "forward" or "inference"
    layout: Layout  # the mesh: its shape and the names of its axes
    device: str
    gpu: CudaProfile | None  # what it is, if it is a CUDA device
    reserved_bytes: int  # of its memory, not for the caching allocator
    by_ranks: tuple[RankPlan, ...]  # in order of their first ranks; each rank is in one of them
    links: Links | None = None  # what connects the ranks
    job: Job | None = field(default=None, compare=False)  # what was run, to run it again

    @cached_property
    def highest(self) -> RankPlan:
        """The memory and communication of the ranks with the highest peak."""
        return max(self.by_ranks, key=lambda plan: plan.peak_bytes)

    @property
    def peak_rank(self) -> int:
        """The rank with the highest peak, the first one if there are several."""
        return self.highest.ranks[0]

    @property
    def peak_bytes(self) -> int:
        """The highest peak of any rank."""
        return self.highest.peak_bytes

    @cached_property
    def peak_reserved_bytes(self) -> int | None:
        """The most memory that any rank's caching allocator reserves; None on a CPU."""
        if self.gpu is None:
            return None
        total = self.gpu.total_memory
        usable = total - self.reserved_bytes
        return max(reserved_on(found.estimate, usable, total) for found in self.by_ranks)

    @cached_property
    def schedules(self) -> list[Schedule | None]:
        """When each kernel and each message runs on the ranks of `by_ranks`, in that order; None on
        a CPU. Ranks that send each other messages wait for each other.
        """
        return [
            found.joint_schedule or found.schedule(self.layout, self.links)
            for found in self.by_ranks
        ]

    @cached_property
    def schedule(self) -> Schedule | None:
        """That of the slowest rank; of a pipeline, whose ranks end together, of the one that
        computes most.
        """
        known = [schedule for schedule in self.schedules if schedule is not None]
        return max(known, key=lambda s: (s.seconds, s.computing_seconds), default=None)

    @property
    def step_seconds(self) -> float | None:
        """The time of a step, from the second step on; None on a CPU. See docs/time.md for the
        error of such estimates.
        """
        return None if self.schedule is None else self.schedule.seconds

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation (PaLM, Chowdhery et al. 2022): FLOPs of a rank's step without
        recomputation, as a share of what its GPU could do in bfloat16 in the time of the step.
        """
        if self.schedule is None:
            return None
        return utilization(self.model_flops, self.schedule.seconds, self.gpu)

    @cached_property
    def model_flops(self) -> int:
        """FLOPs of a rank's step without recomputation; the mean, if ranks do not do the same."""
        pairs = zip(self.by_ranks, self.schedules, strict=True)
        known = [(len(found.ranks), schedule) for found, schedule in pairs if schedule is not None]
        total = sum(number * schedule.model_flops for number, schedule in known)
        return total // max(sum(number for number, _ in known), 1)

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What the rank with the highest peak sends; other ranks may send other amounts."""
        return self.highest.traffic

    def of_rank(self, rank: int) -> RankPlan:
        """What one rank holds and sends.

        Raises:
            InputsError: if the plan does not include that rank.
        """
        for found in self.by_ranks:
            if type(rank) is int and rank in found.ranks:
                return found
        raise InputsError(f"rank {rank!r} is not a rank of the plan")

    @cached_property
    def fit(self) -> Fit | None:
        """Whether the peak reserved memory fits on the GPU; None on a CPU."""
        if self.gpu is None or self.peak_reserved_bytes is None:
            return None
        sizes = self.gpu.total_memory, self.reserved_bytes, self.peak_bytes
        no_search = None, None, None, None
        return Fit(self.gpu.name, *sizes, *no_search, self.peak_reserved_bytes)

    @property
    def fits(self) -> bool | None:
        """Whether the peak reserved memory fits; None on a CPU."""
        return None if self.fit is None else self.fit.fits

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON."""
        return {
            "class_name": self.class_name,
            "mode": self.mode,
            "mesh": dict(zip(self.layout.axes, self.layout.shape, strict=True)),
            "device": self.device,
            "gpu": None if self.gpu is None else self.gpu.name,
            "peak_rank": self.peak_rank,
            "peak_bytes": self.peak_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "step_seconds": self.step_seconds,
            "mfu": self.mfu,
            "schedule": None if self.schedule is None else self.schedule.to_dict(),
            "fit": None if self.fit is None else self.fit.to_dict(),
            "by_ranks": [found.to_dict() for found in self.by_ranks],
        }

    def to_pandas(self) -> Any:
        """One row for each rank, as a pandas DataFrame.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        plans = {rank: found for found in self.by_ranks for rank in found.ranks}
        ranks = sorted(plans)
        coordinates = self.layout.coordinates[ranks]
        return data_frame(
            {
                "rank": ranks,
                **{axis: coordinates[:, i] for i, axis in enumerate(self.layout.axes)},
                **{name: [plans[r].most_bytes[name] for r in ranks] for name in _COLUMNS},
                "peak_bytes": [plans[r].peak_bytes for r in ranks],
                "sent_bytes": [plans[r].sent_bytes for r in ranks],
            }
        )


_COLUMNS = [KINDS[i] for i in SHOWN_ORDER]
