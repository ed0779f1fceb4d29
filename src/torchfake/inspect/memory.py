"""How much memory a step takes: run on fakes, every storage followed from birth to death.

Enters: a module, inputs, what to train it with. Leaves: an :class:`Estimate`, plain data with the
lives of all storages. Invariant: bytes are those that operators ask for, rounded up only as the
caller says; what a kernel takes for itself while it runs is nobody's storage, and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from torchfake._cuda import CudaProfile
from torchfake._origin import Origin
from torchfake.inspect.ledger import CATEGORIES, PHASES, Ledger, Lives
from torchfake.inspect.options import main_device, step_of
from torchfake.inspect.running import Running
from torchfake.inspect.shown import Shown, data_frame
from torchfake.inspect.steps import Loss, Step
from torchfake.inspect.subject import Subject, subject_of

CUDA_ROUNDING = 512
"""Bytes that CUDA's caching allocator rounds a request up to a multiple of: ``kMinBlockSize`` in
c10/cuda/CUDACachingAllocator.h."""

MATRIX_PRODUCTS = ("addmm", "baddbmm", "bmm", "mm", "addbmm", "addmv", "mv", "dot")
"""Operators that cuBLAS does, for which torch keeps a workspace."""


def cublas_workspace_bytes(profile: CudaProfile) -> int:
    """The workspace torch gives each cuBLAS handle: ``parseChosenWorkspaceSize`` in
    aten/src/ATen/cuda/CublasHandlePool.cpp. 32 MiB from compute capability 9 on, else 8.125 MiB.
    """
    return 4096 * 8 * 1024 if profile.major >= 9 else 4096 * 1024 * 2 + 16 * 1024 * 8


_RUNS_USERS_CODE = ("forward", "prefill", "decode")


@dataclass(frozen=True)
class Peak:
    """The moment at which most memory is held."""

    num_bytes: int
    event: int  # births and deaths before it
    phase: str  # of the step: "forward", "backward", "optimizer", ...
    module: str  # the full name of the one that was running, or going back; "" for none
    op: str  # whose result was the last straw; "" if nothing was made after the start
    line: str  # of the user's code that asked for it; "" where that is not known
    by_category: dict[str, int]  # bytes, the largest first; they add up to num_bytes

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Timeline:
    """Bytes held after each birth and death, by category."""

    categories: tuple[str, ...]
    num_bytes: np.ndarray[Any, Any]  # int64 [events, categories]
    phase: np.ndarray[Any, Any]  # int8 [events], into PHASES

    @property
    def total(self) -> np.ndarray[Any, Any]:
        """Bytes held in all, int64 [events]."""
        total: np.ndarray[Any, Any] = self.num_bytes.sum(axis=1)
        return total


@dataclass(frozen=True, repr=False)
class Estimate(Shown):
    """The memory of one step on one device."""

    class_name: str  # of the module
    mode: str  # "training", "forward", "inference" or "generation"
    device: str  # the one this is about: that of most parameter bytes
    gpu: CudaProfile | None  # what it is, if it is a CUDA device
    round_to: int  # bytes
    workspace_bytes: int  # of cuBLAS; held throughout, in the category "workspace"
    elsewhere: dict[str, int]  # peak bytes on other devices, not counted above
    lives: Lives = field(compare=False)  # of the storages on `device`
    subject: Subject = field(compare=False)  # what was run
    step: Step = field(compare=False)  # and how

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once, from the second step on: the optimizer has its state."""
        return self.peak.num_bytes

    @property
    def first_step_peak_bytes(self) -> int:
        """The same of the very first step, in which the optimizer makes its state at the end."""
        return int(self._total(self.lives.born).max(initial=0)) + self.workspace_bytes

    @cached_property
    def sizes(self) -> np.ndarray[Any, Any]:
        """What each storage takes, int64: rounded."""
        sizes: np.ndarray[Any, Any] = -(-self.lives.num_bytes // self.round_to) * self.round_to
        return sizes

    @cached_property
    def born(self) -> np.ndarray[Any, Any]:
        """When each storage is born, int64; optimizer state at the start."""
        is_state = self.lives.category == CATEGORIES.index("optimizer state")
        return np.where(is_state, 0, self.lives.born)

    def _total(
        self, born: np.ndarray[Any, Any], which: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """Bytes held after each event by the storages that `which` marks, int64 [events]."""
        sizes = self.sizes if which is None else np.where(which, self.sizes, 0)
        return self.lives.held(born, sizes)

    @cached_property
    def peak(self) -> Peak:
        """The moment at which most is held, and what holds it."""
        lives, total = self.lives, self._total(self.born)
        event = int(total.argmax()) if len(total) else 0
        row = min(int(np.searchsorted(lives.born, event)), len(lives.op) - 1)
        if row < 0:
            return Peak(self.workspace_bytes, 0, "start", "", "", "", {})
        place = lives.place[row] if PHASES[lives.phase[row]] in _RUNS_USERS_CODE else None
        return Peak(
            num_bytes=int(total[event]) + self.workspace_bytes,
            event=event,
            phase=PHASES[lives.phase[row]],
            module=lives.module[row],
            op=lives.op[row],
            line="" if place is None else str(Origin(*place)),
            by_category=self._by_category(self._alive(event)),
        )

    def _alive(self, event: int) -> np.ndarray[Any, Any]:
        """Which storages are held after `event`."""
        alive: np.ndarray[Any, Any] = (self.born <= event) & (self.lives.died > event)
        return alive

    def _by_category(self, which: np.ndarray[Any, Any]) -> dict[str, int]:
        sums = np.bincount(self.lives.category[which], self.sizes[which], minlength=len(CATEGORIES))
        found = {name: int(n) for name, n in zip(CATEGORIES, sums, strict=True) if n}
        if self.workspace_bytes:
            found["workspace"] = self.workspace_bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def by_module(self) -> dict[str, dict[str, int]]:
        """Bytes at the peak by the full name of the module they are of, and by category.

        Each is a module's own: sums over what is in it are the caller's, as `tree` of a summary
        has them. "" is the root, and what belongs to none.
        """
        found: dict[str, dict[str, int]] = {}
        lives = self.lives
        for row in np.flatnonzero(self._alive(self.peak.event)).tolist():
            own = found.setdefault(lives.module[row], {})
            name = CATEGORIES[lives.category[row]]
            own[name] = own.get(name, 0) + int(self.sizes[row])
        return found

    @cached_property
    def timeline(self) -> Timeline:
        """Bytes held after each birth and death; the workspace of cuBLAS is left out."""
        category = self.lives.category
        present = [i for i in range(len(CATEGORIES)) if (category == i).any()]
        columns = [self._total(self.born, category == i) for i in present]
        phase = np.zeros(self.lives.num_events, dtype=np.int8)
        phase[self.lives.born] = self.lives.phase  # deaths are of the phase of the birth before
        return Timeline(
            tuple(CATEGORIES[i] for i in present),
            np.stack(columns, axis=1) if columns else np.zeros((0, 0), dtype=np.int64),
            np.maximum.accumulate(phase),
        )

    def to_dict(self) -> dict[str, Any]:
        """What was found, ready for JSON; the lives are left out."""
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
            "elsewhere": self.elsewhere,
        }

    def to_pandas(self) -> Any:
        """One row for each storage, as a pandas DataFrame.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        lives = self.lives
        return data_frame(
            {
                "num_bytes": self.sizes,
                "born": self.born,
                "died": lives.died,
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
) -> Estimate:
    """The memory that a step of `module` takes, run on fakes: forward, backward, optimizer.

    The step is run on a fake copy; the module is not touched, and needs no weights. Gradients are
    taken to be freed before the forward pass (``zero_grad()``), and the output to be held until the
    step's end, as in a plain loop. Gradient checkpointing is as the module has it.

    Args:
        module: fake, deferred or real.
        inputs: as its forward takes them; a lone mapping is taken as keyword arguments. See
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

    Returns:
        The estimate, for the device that most of the parameters are on.

    Raises:
        InputsError: if the options do not fit the module or each other.
        DeviceError: if there is no such device or profile.

    Whatever the module raises on these inputs is raised as it is; :func:`check` says where.

    >>> from torchfake import fake_mode
    >>> with fake_mode():
    ...     layer = nn.Linear(1024, 1024, bias=False)
    ...     x = torch.empty(16, 1024)
    >>> found = estimate(layer, x, optimizer="adam")
    >>> found.peak.phase, found.peak.by_category["optimizer state"]
    ('optimizer', 8388612)
    """
    subject = subject_of(module, inputs, device=device, gpu=gpu)
    step = step_of(subject, mode, optimizer, loss, autocast, decode, round_to, workspace_bytes)
    return run_step(subject, step)


def run_step(subject: Subject, step: Step) -> Estimate:
    """Run a step on a copy of its subject, and read the books."""
    twin = subject.twin()
    ledger = Ledger(Running(twin.module))
    with twin.mode():
        step.run(twin, ledger)
    lives = ledger.close()
    device = main_device(twin.module)
    profile = subject.profile if device.type == "cuda" else None
    here = np.array([name == str(device) for name in lives.device], dtype=bool)
    return Estimate(
        class_name=type(subject.module).__name__,
        mode=step.mode,
        device=str(device),
        gpu=profile,
        round_to=step.round_to or (CUDA_ROUNDING if profile else 1),
        workspace_bytes=workspaces(profile, ledger, step),
        elsewhere=peaks_elsewhere(lives, str(device)),
        lives=lives.rows(here),
        subject=subject,
        step=step,
    )


def workspaces(profile: CudaProfile | None, ledger: Ledger, step: Step) -> int:
    """One for the thread that goes forward, one for autograd's: each has a handle of its own."""
    if step.workspace_bytes is not None:
        return step.workspace_bytes
    if profile is None or not any(_is_product(op) for op in ledger.ops):
        return 0
    handles = 2 if step.mode == "training" else 1
    return handles * cublas_workspace_bytes(profile)


def _is_product(op: Any) -> bool:
    name = str(op).removeprefix("aten.").partition(".")[0]
    return name in MATRIX_PRODUCTS


def peaks_elsewhere(lives: Lives, device: str) -> dict[str, int]:
    """The peaks on other devices, in bytes."""
    peaks: dict[str, int] = {}
    for name in sorted({*lives.device} - {device}):
        there = lives.rows(np.array([other == name for other in lives.device], dtype=bool))
        peaks[name] = int(there.held(there.born, there.num_bytes).max(initial=0))
    return peaks
