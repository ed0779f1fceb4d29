"""The record of an estimate: the peak, the bytes at every moment, by category and by module.

Input: the lifetimes of the storages of a step, and the workspaces of CUDA. Output: an
:class:`Estimate`, plain data. Invariant: bytes are those that operators request, rounded up only as
the caller requests; the memory that the caching allocator reserves is computed in ``reserved``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.arithmetic.uncounted import Uncounted, uncounted_to_dict
from torchfake.inspect.contents.experts import Active, active_parameters, parameters_to_dict
from torchfake.inspect.copies.workload import Workload
from torchfake.inspect.inputs.example_inputs import generated_to_dict
from torchfake.inspect.memory.counted import Counted, counted_with
from torchfake.inspect.memory.left_out import left_out_of
from torchfake.inspect.memory.reserved import KEPT, ReservedMemory
from torchfake.inspect.records.messages import answers_to_dict
from torchfake.inspect.records.record import Record, data_frame
from torchfake.inspect.serving.cache_record import ServedCache
from torchfake.inspect.steps.adapters import changes_to_dict
from torchfake.inspect.steps.step import Step
from torchfake.inspect.storages.cuda_memory import cublas_workspace_bytes
from torchfake.inspect.storages.held import Peak as Peak
from torchfake.inspect.storages.held import Timeline as Timeline
from torchfake.inspect.storages.lifetimes import CATEGORIES, PHASES, Array, Lifetimes
from torchfake.inspect.storages.scratch import lifetimes_on, sizes_on
from torchfake.inspect.timing.commands import Command, uncounted_commands
from torchfake.inspect.timing.schedule import GenerationTime, Schedule, generation_time, schedule_of
from torchfake.inspect.timing.slow_products import schedule_to_dict
from torchfake.observe import Answer, SourceLocation

_PHASES_OF_USER_CODE = ("forward", "prefill", "decode")
"""Phases in which the user's code calls the operators, so that the calling line is known."""


@dataclass(frozen=True, repr=False)
class Estimate(ReservedMemory, Record):
    """The memory of one step on one device."""

    class_name: str  # the name of the module's class
    mode: str  # "training", "forward", "inference", "generation" or "serving"
    device: str  # the device that the numbers are for: the one with most parameter bytes
    gpu: CudaProfile | None  # the profile of `device`, if it is a CUDA device
    round_to: int  # allocations are rounded up to a multiple of so many bytes
    workspace_bytes: int  # of cuBLAS; held throughout, in the category "workspace"
    elsewhere: dict[str, int]  # peak bytes on other devices, which no other field counts
    lives: Lifetimes = field(compare=False)  # of the storages on `device`
    subject: Workload = field(compare=False)  # the module and inputs that were run
    step: Step = field(compare=False)  # the options of the step
    answers: tuple[Answer, ...] = field(default=(), compare=False)
    """The answers given to questions about unknown values."""
    first_lives: Lifetimes | None = field(default=None, compare=False)
    """The lifetimes in the first step, if later steps differ from it."""
    cache: ServedCache | None = None  # the cache of all users, when a model is served
    commands: tuple[Command, ...] = field(default=(), compare=False)
    """The commands that the step puts on the streams of a GPU, in order."""
    loss: str | None = None  # of a training step, as text: "the output's loss"
    steps: tuple[Estimate, ...] = field(default=(), compare=False)
    """With `lengths`, each step in order; this estimate is of the one with the highest peak."""
    evaluation: Estimate | None = field(default=None, compare=False)
    """The pass of evaluation after the steps, without what it finds allocated."""

    @property
    def runs(self) -> tuple[Estimate, ...]:
        """What was run: the step, once for each length, and the evaluation."""
        after = () if self.evaluation is None else (self.evaluation,)
        return (*{id(each): each for each in self.steps or (self,)}.values(), *after)

    def of_runs(self, runs: Sequence[Estimate]) -> Estimate:
        """The same estimate with others in place of its `runs`, which are in the same order."""
        new = {id(old): one for old, one in zip(self.runs, runs, strict=True)}
        (own,) = {id(each) for each in self.steps or (self,) if each.lives is self.lives}
        steps = tuple(new[id(each)] for each in self.steps)
        after = None if self.evaluation is None else new[id(self.evaluation)]
        return replace(new[own], steps=steps, evaluation=after)

    def on(self, gpu: CudaProfile) -> Estimate:
        """The estimate for another GPU on which the step runs alike."""
        return self.of_runs([each._alone_on(gpu) for each in self.runs])

    def _alone_on(self, gpu: CudaProfile) -> Estimate:
        assert self.gpu is not None
        return replace(
            self,
            gpu=gpu,
            subject=replace(self.subject, gpu=gpu, alike=None),
            workspace_bytes=self._workspace_on(gpu),
            lives=lifetimes_on(self.lives, self.gpu, gpu),
            steps=(),
            evaluation=None,
            first_lives=self.first_lives and lifetimes_on(self.first_lives, self.gpu, gpu),
        )

    def kind_on(self, gpu: CudaProfile) -> Any:
        """A key that is equal for GPUs on which all allocations are the same."""
        tables = (lives for each in self.runs for lives in each.tables)
        return self._workspace_on(gpu), *(sizes_on(lives, gpu) for lives in tables)

    @property
    def tables(self) -> tuple[Lifetimes, ...]:
        """The lifetimes in the step, and those in the first one if they differ."""
        return (self.lives, *(() if self.first_lives is None else (self.first_lives,)))

    def _workspace_on(self, gpu: CudaProfile) -> int:
        if self.gpu is None or self.step.workspace_bytes is not None:
            return self.workspace_bytes
        number = self.workspace_bytes // cublas_workspace_bytes(self.gpu)
        return number * cublas_workspace_bytes(gpu)

    @property
    def is_gpu_assumed(self) -> bool:
        """Whether nobody has named `gpu`."""
        return self.gpu is not None and self.subject.gpu is None

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """What a real run does or holds and the estimate leaves out, such as hooks of parameters,
        the effect of ``torch.compile``, or settings that are not followed; one line each.
        """
        return left_out_of(self.subject, self.step, {*self.lives.op}, self.device)

    @cached_property
    def counted(self) -> Counted:
        """What was counted: the kind of step, the optimizer, the sizes of the inputs."""
        return counted_with(self.subject, self.step)

    @cached_property
    def schedule(self) -> Schedule | None:
        """When each kernel of the step runs. None on a CPU or a GPU of the user's own, if the step
        was not timed, and for generation and serving, of which not all passes are run.
        """
        is_step = self.step.decode is None and self.step.serve is None
        if self.gpu is None or not is_step or not self.commands:
            return None
        return schedule_of(self.commands, self.gpu)

    @cached_property
    def generation(self) -> GenerationTime | None:
        """The time of the prompt, and of each token; None if the step is no generation."""
        if self.gpu is None or self.step.decode is None:
            return None
        return generation_time(self.commands, self.gpu, self.step.decode[1])

    @cached_property
    def uncounted(self) -> tuple[Uncounted, ...]:
        """The operators on the GPU whose FLOPs are not known."""
        return uncounted_commands(self.commands)

    @property
    def step_seconds(self) -> float | None:
        """The time of a step, from the second step on, or of generation. None if not known; the
        GPU takes at least ``schedule.seconds``.
        """
        if self.generation is not None:
            return self.generation.seconds
        schedule = self.schedule
        return None if schedule is None or schedule.is_lower_bound else schedule.seconds

    @cached_property
    def active(self) -> Active | None:
        """For a mixture of experts, the parameters used for one token."""
        return active_parameters(self.subject.module)

    @property
    def peak_bytes(self) -> int:
        """Peak memory from the second step on, when the optimizer already has its state."""
        return self.peak.num_bytes

    @property
    def reserved_beyond_peak_bytes(self) -> int | None:
        """`peak_reserved_bytes` less `peak_bytes`, which may be at another moment."""
        reserved = self.peak_reserved_bytes
        return None if reserved is None else reserved - self.peak_bytes

    @property
    def first_step_peak_bytes(self) -> int:
        """Peak memory of the first step, at the end of which the optimizer creates its state."""
        lives = self.first_lives or self.lives
        held = lives.held_bytes(lives.allocated_at, self._rounded(lives))
        return int(held.max(initial=0)) + self.workspace_bytes

    @property
    def after_step_bytes(self) -> int:
        """Bytes held at the end of the step, among them its output and its gradients."""
        return int(self.held_bytes()[-1:].sum()) + self.workspace_bytes

    @property
    def evaluation_peak_bytes(self) -> int | None:
        """Peak memory of the evaluation, with the gradients and the optimizer's state beside it."""
        if (after := self.evaluation) is None:
            return None
        found = np.isin(self.lives.category, [CATEGORIES.index(name) for name in KEPT])
        kept = int(self.sizes[found & (self.lives.freed_at >= self.lives.num_events)].sum())
        return after.peak_bytes - after.workspace_bytes + self.workspace_bytes + kept

    @cached_property
    def sizes(self) -> Array:
        """Bytes of each storage, rounded up to a multiple of `round_to`, int64."""
        return self._rounded(self.lives)

    def _rounded(self, lives: Lifetimes) -> Array:
        sizes: Array = -(-lives.num_bytes // self.round_to) * self.round_to
        return sizes

    @cached_property
    def born(self) -> Array:
        """The event at which each storage is allocated, int64; 0 for state of the optimizer."""
        is_state = self.lives.category == CATEGORIES.index("optimizer state")
        return np.where(is_state, 0, self.lives.allocated_at)

    def held_bytes(self, mask: Array | None = None) -> Array:
        """Bytes held after each event, from the second step on, int64 [events].

        Args:
            mask: which storages to count, bool; by default all.
        """
        sizes = self.sizes if mask is None else np.where(mask, self.sizes, 0)
        return self.lives.held_bytes(self.born, sizes)

    @cached_property
    def peak(self) -> Peak:
        """The event after which the most memory is held, and its composition."""
        lives, held = self.lives, self.held_bytes()
        event = int(held.argmax()) if len(held) else 0
        row = min(int(np.searchsorted(lives.allocated_at, event)), len(lives.op) - 1)
        if row < 0:
            return Peak(self.workspace_bytes, 0, "start", "", "", "", {})
        phase = PHASES[lives.phase[row]]
        location = lives.location[row] if phase in _PHASES_OF_USER_CODE else None
        return Peak(
            num_bytes=int(held[event]) + self.workspace_bytes,
            event=event,
            phase=phase,
            module=lives.module[row],
            op=lives.op[row],
            line="" if location is None else str(SourceLocation(*location)),
            by_category=self._by_category(self.alive_at(event)),
        )

    def alive_at(self, event: int) -> Array:
        """Which storages are alive after `event`, bool."""
        alive: Array = (self.born <= event) & (self.lives.freed_at > event)
        return alive

    def _by_category(self, mask: Array) -> dict[str, int]:
        sums = np.bincount(self.lives.category[mask], self.sizes[mask], minlength=len(CATEGORIES))
        found = {name: int(n) for name, n in zip(CATEGORIES, sums, strict=True) if n}
        if self.workspace_bytes:
            found["workspace"] = self.workspace_bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def by_module(self) -> dict[str, dict[str, int]]:
        """Bytes at the peak, by the full name of the module and by category.

        A module's bytes do not include those of its children; `tree` of a summary has the hierarchy
        to add them up. "" is the root, and storages that belong to no module.
        """
        found: dict[str, dict[str, int]] = {}
        lives = self.lives
        for row in np.flatnonzero(self.alive_at(self.peak.event)).tolist():
            own = found.setdefault(lives.module[row], {})
            name = CATEGORIES[lives.category[row]]
            own[name] = own.get(name, 0) + int(self.sizes[row])
        return found

    @cached_property
    def timeline(self) -> Timeline:
        """Bytes held after each event, the workspaces of cuBLAS included."""
        category = self.lives.category
        present = [i for i in range(len(CATEGORIES)) if (category == i).any()]
        columns = [self.held_bytes(category == i) for i in present]
        phase = np.zeros(self.lives.num_events, dtype=np.int8)
        phase[self.lives.allocated_at] = self.lives.phase
        names = [CATEGORIES[i] for i in present]
        if self.workspace_bytes:
            columns.append(np.full(self.lives.num_events, self.workspace_bytes))
            names.append("workspace")
        return Timeline(
            tuple(names),
            np.stack(columns, axis=1) if columns else np.zeros((0, 0), dtype=np.int64),
            np.maximum.accumulate(phase),  # a deallocation belongs to the phase that is running
        )

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON, without the lifetimes of storages."""
        after, batch = self.evaluation_peak_bytes, self.counted.batch
        times = 1 if self.schedule is None else self.schedule.times_as_much
        return {
            "class_name": self.class_name,
            "mode": self.mode,
            **({} if self.loss is None else {"loss": self.loss}),
            **self.counted.to_dict(),
            "device": self.device,
            "gpu": None if self.gpu is None else self.gpu.name,
            **({"is_gpu_assumed": True} if self.is_gpu_assumed else {}),
            **generated_to_dict(self.subject.kwargs),
            "peak_bytes": self.peak_bytes,
            "first_step_peak_bytes": self.first_step_peak_bytes,
            "after_step_bytes": self.after_step_bytes,
            **({"lengths": [*self.step.lengths]} if self.steps else {}),
            **({"batch_that_takes_as_long": times * (batch or 0)} if times > 1 else {}),
            **({"evaluation_peak_bytes": after} if after is not None else {}),
            "reserved_beyond_peak_bytes": self.reserved_beyond_peak_bytes,
            "peak": self.peak.to_dict(),
            "by_module": self.by_module,
            "round_to": self.round_to,
            "workspace_bytes": self.workspace_bytes,
            **self.reserved_to_dict(),
            "schedule": schedule_to_dict(self.schedule, self.gpu),
            **({} if self.generation is None else {"generation": self.generation.to_dict()}),
            "elsewhere": self.elsewhere,
            **uncounted_to_dict(self.uncounted),
            **({"left_out": list(self.left_out)} if self.left_out else {}),
            **parameters_to_dict(self.subject.module),
            **self._serving_to_dict(),
            **changes_to_dict(self.step.weights, self.step.peft),
            **answers_to_dict(self.answers),
        }

    def _serving_to_dict(self) -> dict[str, Any]:
        serve, cache = self.step.serve, self.cache
        return {"serve": serve.to_dict(), "cache": cache.to_dict()} if serve and cache else {}

    def to_pandas(self) -> Any:
        """The lifetimes as a pandas DataFrame, one row per storage; `born` and `died` are events.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        lives = self.lives
        return data_frame(
            {
                "num_bytes": self.sizes,
                "born": self.born,
                "died": lives.freed_at,
                "category": [CATEGORIES[i] for i in lives.category],
                "phase": [PHASES[i] for i in lives.phase],
                "module": lives.module,
                "op": lives.op,
            }
        )
