"""How much memory a step takes: run on fakes, every storage followed from allocation to freeing.

Input: a module, inputs, what to train it with. Output: an :class:`Estimate`, plain data with the
lifetimes of all storages. Invariant: bytes are those that operators request, rounded up only as the
caller requests; scratch memory that a kernel uses while it runs belongs to no storage and is not
counted. Called by: the user, ``fit``, ``inspection`` and ``show/report``; ``distributed/run_rank``
has the same accounts made of its own run.

One pass: the arguments are collected (:func:`workload_of`, :func:`step_of`), the step is run
(:func:`run_step`), its allocations are accounted (:func:`account`), and ``show`` draws the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from torchfake._answers.answers import Answer
from torchfake._answers.asking import AnswerFunction
from torchfake._core.gpu_profiles import CudaProfile
from torchfake._core.source_location import SourceLocation
from torchfake.inspect.base_record import Record, data_frame
from torchfake.inspect.describe.messages import answers_to_dict
from torchfake.inspect.reserved import ReservedMemory
from torchfake.inspect.run import cuda_memory
from torchfake.inspect.run.execution import run_step
from torchfake.inspect.run.lifetimes import CATEGORIES, PHASES, Array, Lifetimes
from torchfake.inspect.run.module_tracker import ModuleTracker
from torchfake.inspect.run.step import Loss, Step, main_device, step_of
from torchfake.inspect.run.storage_tracker import StorageTracker
from torchfake.inspect.run.workload import Workload, workload_of

_PHASES_OF_USER_CODE = ("forward", "prefill", "decode")
"""Phases in which operators are called by the user's code, so that a line of it is known."""


@dataclass(frozen=True)
class Peak:
    """The event after which most memory is held."""

    num_bytes: int
    event: int  # allocations and deallocations before it
    phase: str  # of the step: "forward", "backward", "optimizer", ...
    module: str  # the full name of the one that ran, forward or backward; "" for none
    op: str  # that made the last allocation; "" if nothing was allocated after the start
    line: str  # of the user's code that called it; "" where that is not known
    by_category: dict[str, int]  # bytes, the largest first; they add up to num_bytes

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Timeline:
    """Bytes held after each event, by category."""

    categories: tuple[str, ...]
    num_bytes: Array  # int64 [events, categories]
    phase: Array  # int8 [events], into PHASES

    @property
    def total(self) -> Array:
        """Bytes held in all, int64 [events]."""
        total: Array = self.num_bytes.sum(axis=1)
        return total


@dataclass(frozen=True, repr=False)
class Estimate(ReservedMemory, Record):
    """The memory of one step on one device."""

    class_name: str  # of the module
    mode: str  # "training", "forward", "inference" or "generation"
    device: str  # that the numbers are of: the one with most parameter bytes
    gpu: CudaProfile | None  # what it is, if it is a CUDA device
    round_to: int  # bytes
    workspace_bytes: int  # of cuBLAS; held throughout, in the category "workspace"
    elsewhere: dict[str, int]  # peak bytes on other devices, not counted above
    lives: Lifetimes = field(compare=False)  # of the storages on `device`
    subject: Workload = field(compare=False)  # what was run
    step: Step = field(compare=False)  # and how
    answers: tuple[Answer, ...] = field(default=(), compare=False)
    """To questions about values that do not exist."""

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once, from the second step on: the optimizer has its state."""
        return self.peak.num_bytes

    @property
    def first_step_peak_bytes(self) -> int:
        """The same for the first step, at the end of which the optimizer makes its state."""
        held = self.lives.held_bytes(self.lives.allocated_at, self.sizes)
        return int(held.max(initial=0)) + self.workspace_bytes

    @cached_property
    def sizes(self) -> Array:
        """Bytes of each storage, int64: rounded."""
        sizes: Array = -(-self.lives.num_bytes // self.round_to) * self.round_to
        return sizes

    @cached_property
    def born(self) -> Array:
        """The event at which each storage is allocated, int64; optimizer state at the start."""
        is_state = self.lives.category == CATEGORIES.index("optimizer state")
        return np.where(is_state, 0, self.lives.allocated_at)

    def held_bytes(self, mask: Array | None = None) -> Array:
        """Bytes held after each event, from the second step on, int64 [events].

        Args:
            mask: which storages to count, bool; all, if not given.
        """
        sizes = self.sizes if mask is None else np.where(mask, self.sizes, 0)
        return self.lives.held_bytes(self.born, sizes)

    @cached_property
    def peak(self) -> Peak:
        """The event after which most is held, and what is held then."""
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
        """Bytes at the peak by the full name of their module, and by category.

        A module's bytes do not include those of its children; `tree` of a summary has the hierarchy
        to add them up. "" is the root, and what belongs to no module.
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
        """Bytes held after each event; the workspace of cuBLAS is left out."""
        category = self.lives.category
        present = [i for i in range(len(CATEGORIES)) if (category == i).any()]
        columns = [self.held_bytes(category == i) for i in present]
        phase = np.zeros(self.lives.num_events, dtype=np.int8)
        phase[self.lives.allocated_at] = self.lives.phase
        return Timeline(
            tuple(CATEGORIES[i] for i in present),
            np.stack(columns, axis=1) if columns else np.zeros((0, 0), dtype=np.int64),
            np.maximum.accumulate(phase),  # a deallocation is of the phase that is going on
        )

    def to_dict(self) -> dict[str, Any]:
        """What was found, ready for JSON; the lifetimes of storages are left out."""
        return {
            "class_name": self.class_name,
            "mode": self.mode,
            "device": self.device,
            "gpu": None if self.gpu is None else self.gpu.name,
            "peak_bytes": self.peak_bytes,
            "first_step_peak_bytes": self.first_step_peak_bytes,
            "peak": self.peak.to_dict(),
            "by_module": self.by_module,
            "round_to": self.round_to,
            "workspace_bytes": self.workspace_bytes,
            **self.reserved_to_dict(),
            "elsewhere": self.elsewhere,
            **answers_to_dict(self.answers),
        }

    def to_pandas(self) -> Any:
        """One row for each storage, as a pandas DataFrame; `born` and `died` are events.

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


def estimate(
    module: nn.Module,
    *inputs: Any,
    optimizer: Any = None,
    loss: Loss | None = None,
    mode: str | None = None,
    autocast: torch.dtype | str | bool | None = None,
    decode: tuple[int, int] | None = None,
    device: torch.device | str | None = None,
    gpu: str | CudaProfile | None = None,
    round_to: int | None = None,
    workspace_bytes: int | None = None,
    allocator: str | None = None,
    answer: str | AnswerFunction | None = None,
) -> Estimate:
    """The memory that a step of `module` takes, run on fakes: forward, backward, optimizer.

    The step is run on a fake copy; the module is not touched, and needs no weights. As in a plain
    loop, gradients are freed before the forward pass (``zero_grad()``) and the output is held until
    the end of the step. Gradient checkpointing is as the module has it.

    Args:
        module: fake, deferred or real.
        inputs: as its forward takes them; a single mapping is taken as keyword arguments. See
            :func:`example_inputs`.
        optimizer: a name or class of ``torch.optim``, a function of the parameters, or an
            optimizer of the module's parameters.
        loss: a function of the output; not given: ``output.loss``, else the sum of the first tensor
            with a gradient.
        mode: ``"training"`` (forward, backward, and the optimizer if given), ``"forward"`` (with
            the graph for a backward pass), or ``"inference"``. Not given: training where an
            optimizer or a loss is, else inference.
        autocast: the dtype of ``torch.autocast`` around the forward pass; True: the device's own.
        decode: ``(prompt, new_tokens)``, lengths: generation with a cache of keys and values, from
            the pass over the prompt to the last token. Only the batch of `inputs` counts then.
        device: where it is to run, such as ``"cuda"``; no GPU is needed. Not given: where it is.
        gpu: a profile or its name, see :func:`torchfake.profiles`; means ``device="cuda"``.
        round_to: bytes that an allocation is rounded up to; 512 on CUDA, 1 elsewhere.
        workspace_bytes: of cuBLAS; not given: as torch has it on that GPU, one for the forward and
            one for the backward pass.
        allocator: options of CUDA's caching allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``, such as
            ``"expandable_segments:True"``; for ``peak_reserved_bytes``.
        answer: who answers questions about values that do not exist: ``"typical"``, or a function,
            as :func:`torchfake.fake_mode` takes it. What was answered is in ``answers``.

    Returns:
        The estimate, for the device that most of the parameters are on.

    Raises:
        InputsError: if the options do not fit the module or each other.
        DeviceError: if there is no such device or profile.

    Whatever the module raises on these inputs is raised as it is; :func:`check` reports where.

    >>> from torchfake import fake_mode
    >>> with fake_mode():
    ...     layer = nn.Linear(1024, 1024, bias=False)
    ...     x = torch.empty(16, 1024)
    >>> found = estimate(layer, x, optimizer="adam")
    >>> found.peak.phase, found.peak.by_category["optimizer state"]
    ('optimizer', 8388612)
    """
    workload = workload_of(module, inputs, device=device, gpu=gpu, answer=answer)
    options = round_to, workspace_bytes, allocator
    return measure(workload, step_of(workload, mode, optimizer, loss, autocast, decode, *options))


def measure(workload: Workload, step: Step) -> Estimate:
    """Run a step on a fake copy of a workload, and account for its memory."""
    fake_copy = workload.fake_copy()
    tracker = StorageTracker(ModuleTracker(fake_copy.module))
    with fake_copy.mode():
        run_step(step, fake_copy, tracker)
    return account(
        tracker.finish(),
        tracker.ops,
        class_name=type(workload.module).__name__,
        device=main_device(fake_copy.module),
        workload=workload,
        step=step,
        answers=fake_copy.answers,
    )


def account(
    lives: Lifetimes,
    ops: Iterable[Any],
    *,
    class_name: str,
    device: torch.device,
    workload: Workload,
    step: Step,
    answers: tuple[Answer, ...] = (),
) -> Estimate:
    """The memory of a step that was run.

    Args:
        lives: of the storages on all devices.
        ops: all operators that ran.
        class_name: of the module.
        device: that the estimate is of; for others only peaks are kept.
        workload: what was run.
        step: and how.
        answers: to what it asked.
    """
    profile = workload.profile if device.type == "cuda" else None
    return Estimate(
        class_name=class_name,
        mode=step.mode,
        device=str(device),
        gpu=profile,
        round_to=cuda_memory.allocation_rounding(profile, step),
        workspace_bytes=cuda_memory.workspace_bytes(profile, ops, step),
        elsewhere=_peaks_elsewhere(lives, str(device)),
        lives=lives.rows(lives.on_device(device)),
        subject=workload,
        step=step,
        answers=answers,
    )


def _peaks_elsewhere(lives: Lifetimes, device: str) -> dict[str, int]:
    """The peaks on other devices, in bytes."""
    peaks: dict[str, int] = {}
    for name in sorted({*lives.device} - {device}):
        there = lives.rows(lives.on_device(name))
        peaks[name] = int(there.held_bytes(there.allocated_at, there.num_bytes).max(initial=0))
    return peaks
