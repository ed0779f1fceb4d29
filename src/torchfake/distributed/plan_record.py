"""The record of a plan: the memory, communication and time of a step on every rank of a mesh.

Input: the results of each kind of rank. Output: a :class:`Plan`, plain data. Invariant: each rank
is in exactly one ``RankPlan``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.distributed.layout import Layout
from torchfake.distributed.ranks.rank_plan import SHOWN_CATEGORIES, RankPlan
from torchfake.distributed.ranks.rank_tracker import Traffic
from torchfake.distributed.ranks.run_rank import Job
from torchfake.distributed.step_time import StepTime, skipped_flops, step_time
from torchfake.errors import InputsError
from torchfake.inspect.arithmetic.uncounted import (
    Uncounted,
    most_of_any,
    uncounted_to_dict,
    untimed_to_dict,
)
from torchfake.inspect.memory.estimate_record import Estimate, Peak
from torchfake.inspect.memory.fit import Fit
from torchfake.inspect.memory.limited import reserved_on, reserved_with_room
from torchfake.inspect.records.record import Record, data_frame
from torchfake.inspect.timing.collectives import Links, gpus_per_node, network_gbits
from torchfake.inspect.timing.hardware import peak_text, utilization
from torchfake.inspect.timing.schedule import Schedule
from torchfake.inspect.timing.slow_products import schedule_to_dict


@dataclass(frozen=True, repr=False)
class Plan(Record):
    """The memory and communication of every rank of a mesh in a step."""

    class_name: str  # the class of the module, before it was parallelized
    mode: str  # "training", "forward" or "inference"
    layout: Layout  # the mesh: its shape and the names of its axes
    device: str
    gpu: CudaProfile | None  # the profile of each rank's device; None on the CPU
    reserved_bytes: int  # memory of the GPU that the caching allocator cannot use
    by_ranks: tuple[RankPlan, ...]  # in order of their first ranks; each rank is in one of them
    links: Links | None = None  # the links between ranks
    job: Job | None = field(default=None, compare=False)  # to run the plan again at another size
    num_run: int = 1  # micro-batches that were run, which `by_ranks` and `schedule` describe
    num_all: int = 1  # micro-batches of a step, which `traffic` and all times include

    @cached_property
    def highest(self) -> RankPlan:
        """The memory and communication of the ranks with the highest peak."""
        return max(self.by_ranks, key=lambda plan: plan.peak_bytes)

    @property
    def estimate(self) -> Estimate:
        """The step of the ranks with the highest peak."""
        return self.highest.estimate

    @property
    def peak(self) -> Peak:
        """The moment of the highest peak of any rank."""
        return self.highest.peak

    @property
    def peak_rank(self) -> int:
        """The first rank with the highest peak."""
        return self.highest.ranks[0]

    def on(self, gpu: CudaProfile) -> Plan:
        """The plan, without times, for another GPU on which all ranks run alike."""
        ranks = (replace(each, estimate=each.estimate.on(gpu)) for each in self.by_ranks)
        return replace(self, gpu=gpu, by_ranks=tuple(ranks))

    def kind_on(self, gpu: CudaProfile) -> Any:
        """A key that is equal for GPUs on which all allocations are the same."""
        return tuple(each.estimate.kind_on(gpu) for each in self.by_ranks)

    @property
    def peak_bytes(self) -> int:
        """The highest peak of any rank."""
        return self.highest.peak_bytes

    @property
    def cpu_bytes(self) -> int:
        """The most bytes of CPU memory that a rank on a GPU holds: offloaded shards."""
        return max(found.estimate.elsewhere.get("cpu", 0) for found in self.by_ranks)

    @cached_property
    def peak_reserved_bytes(self) -> int | None:
        """The most memory that any rank's caching allocator reserves; None on a CPU."""
        return None if self.gpu is None else max(self.reserved_by_ranks)

    @cached_property
    def reserved_by_ranks(self) -> list[int]:
        """The most memory that the caching allocator reserves, of each entry of `by_ranks`; on a
        CPU, the most that is allocated.
        """
        if self.gpu is None:
            return [found.peak_bytes for found in self.by_ranks]
        total = self.gpu.total_memory
        usable = total - self.reserved_bytes
        return [reserved_on(found.estimate, usable, total) for found in self.by_ranks]

    @cached_property
    def schedules(self) -> list[Schedule | None]:
        """The schedule of kernels and messages of each entry of `by_ranks`; None on a CPU. Ranks
        that send each other messages wait for each other.
        """
        return [
            found.joint_schedule or found.schedule(self.layout, self.links)
            for found in self.by_ranks
        ]

    @cached_property
    def schedule(self) -> Schedule | None:
        """The schedule of the slowest rank; in a pipeline, whose ranks end together, the schedule
        of the rank that computes most.
        """
        known = [schedule for schedule in self.schedules if schedule is not None]
        return max(known, key=lambda s: (s.seconds, s.computing_seconds), default=None)

    @cached_property
    def time(self) -> StepTime | None:
        """The time of a step with all its micro-batches, from the second step on; None on a CPU.
        See docs/time.md for the error of such estimates.
        """
        if self.schedule is None:
            return None
        return step_time(self.schedule, self._model_flops_run, self.num_run, self.num_all)

    @property
    def step_seconds(self) -> float | None:
        """The seconds of `time`; None on a CPU, and if they are only a lower bound."""
        return None if self.is_lower_bound else self.step_seconds_at_least

    @property
    def step_seconds_at_least(self) -> float | None:
        """The seconds of `time`, which leave out what `untimed` and `uncounted` name; None on a
        CPU.
        """
        return None if self.time is None else self.time.seconds

    @property
    def is_lower_bound(self) -> bool:
        """Whether a step takes longer than `time`: see `untimed` and `uncounted`."""
        return any(schedule is not None and schedule.is_lower_bound for schedule in self.schedules)

    @cached_property
    def untimed(self) -> tuple[Uncounted, ...]:
        """The operators that read or write CPU memory, such as those of the optimizer of offloaded
        parameters, each as on the rank where it moves the most bytes. No time is known for them.
        """
        known = (schedule for schedule in self.schedules if schedule is not None)
        return most_of_any(schedule.untimed for schedule in known)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation (PaLM, Chowdhery et al. 2022): FLOPs of a rank's step without
        recomputation, as a share of its GPU's peak bfloat16 FLOPs in the time of the step. None if
        that time is not known, or not all FLOPs are.
        """
        if self.time is None or self.is_lower_bound:
            return None
        return utilization(self.time.model_flops, self.time.seconds, self.gpu)

    @property
    def mfu_of(self) -> str | None:
        """The peak of which `mfu` is a share, as text: ``989.4 TFLOP/s in bf16``."""
        return None if self.mfu is None or self.gpu is None else peak_text(self.gpu)

    @property
    def model_flops(self) -> int:
        """FLOPs of a rank's step without recomputation; the mean, if ranks differ."""
        return 0 if self.time is None else self.time.model_flops

    @property
    def _model_flops_run(self) -> int:
        """`model_flops` of the micro-batches that were run."""
        pairs = zip(self.by_ranks, self.schedules, strict=True)
        known = [(len(found.ranks), schedule) for found, schedule in pairs if schedule is not None]
        in_ring = self.job is not None and self.job.context is not None
        total = sum(number * each.model_flops for number, each in known)
        total += sum(number * skipped_flops(each) for number, each in known if in_ring)
        return total // max(sum(number for number, _ in known), 1)

    @cached_property
    def uncounted(self) -> tuple[Uncounted, ...]:
        """The operators on the GPUs whose FLOPs are not known, each as on the rank where it moves
        the most bytes: their time is that of these bytes, and `mfu` leaves them out.
        """
        return most_of_any(found.estimate.uncounted for found in self.by_ranks)

    @property
    def sends_nothing(self) -> bool:
        """Whether several ranks train and exchange no gradients."""
        trains = self.mode == "training" and self.layout.num_ranks > 1 and self.job is not None
        return trains and not any(found.traffic for found in self.by_ranks)

    @property
    def network_gbits(self) -> float | None:
        """Gb/s of each GPU between nodes, of which the time of messages follows; None in a node."""
        if self.gpu is None or self.layout.num_ranks <= gpus_per_node(self.links):
            return None
        return network_gbits(self.links)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the plan lacks: an exchange of gradients."""
        if self.job is None or not self.sends_nothing:
            return ()
        why = "" if self.job.parallelize else ": no parallelize= was given"
        return (f"the ranks send nothing, so each trains a model of its own{why}",)

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """The traffic of the rank with the highest peak; other ranks may send other amounts."""
        return self.highest.traffic

    def of_rank(self, rank: int) -> RankPlan:
        """The memory and communication of one rank.

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
        with_room = reserved_with_room(found.estimate for found in self.by_ranks)
        return Fit(self.gpu.name, *sizes, *no_search, self.peak_reserved_bytes, with_room)

    @property
    def fits(self) -> bool | None:
        """Whether the peak reserved memory fits; None on a CPU."""
        return None if self.fit is None else self.fit.fits

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON."""
        return {
            "class_name": self.class_name,
            "mode": self.mode,
            **({"other_format": other} if (other := self.estimate.counted.other_format) else {}),
            "mesh": dict(zip(self.layout.axes, self.layout.shape, strict=True)),
            "device": self.device,
            "gpu": None if self.gpu is None else self.gpu.name,
            "peak_rank": self.peak_rank,
            "peak_bytes": self.peak_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "network_gbits": self.network_gbits,
            "step_seconds": self.step_seconds,
            "step_seconds_at_least": self.step_seconds_at_least,
            "mfu": self.mfu,
            "mfu_of": self.mfu_of,
            **({"notes": list(self.notes)} if self.notes else {}),
            **uncounted_to_dict(self.uncounted),
            **untimed_to_dict(self.untimed),
            "time": None if self.time is None else self.time._asdict(),
            "micro_batches_run": self.num_run,
            "schedule": schedule_to_dict(self.schedule, self.gpu, self.num_all / self.num_run),
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
                **{name: [plans[r].most_bytes[name] for r in ranks] for name in SHOWN_CATEGORIES},
                "peak_bytes": [plans[r].peak_bytes for r in ranks],
                "sent_bytes": [plans[r].sent_bytes for r in ranks],
            }
        )
