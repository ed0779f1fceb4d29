"""Reserved memory: the allocations of a step, replayed through a model of the caching allocator.

Input: the lifetimes of a step's storages. Output: the part of an :class:`Estimate` that is about
reserved memory. Invariant: a CPU has no caching allocator, so all properties are None for it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from torchfake._core.arguments import check_path
from torchfake._core.gpu_profiles import CudaProfile
from torchfake.errors import DeviceError
from torchfake.inspect.allocator.caching_allocator import CachingAllocator
from torchfake.inspect.allocator.device_memory import DeviceMemory
from torchfake.inspect.allocator.outside import CONTEXT_BYTES
from torchfake.inspect.allocator.replay import Reserved, Run, replay
from torchfake.inspect.allocator.settings import UNLIMITED
from torchfake.inspect.allocator.snapshot import Frame, snapshot_of
from torchfake.inspect.steps.step import Step
from torchfake.inspect.storages.cuda_memory import is_matrix_product
from torchfake.inspect.storages.lifetimes import CATEGORIES, PHASES, Lifetimes
from torchfake.observe import RawLocation, SourceLocation


class ReservedMemory:
    """Reserved memory of a step on a CUDA device."""

    device: str
    gpu: CudaProfile | None
    lives: Lifetimes
    step: Step
    first_lives: Lifetimes | None
    workspace_bytes: int
    steps: tuple[Any, ...]
    evaluation: Any

    @property
    def peak_reserved_bytes(self) -> int | None:
        """Peak bytes that the caching allocator reserves, as ``torch.cuda.max_memory_reserved()``:
        steps are repeated until none reserves more. None if the device is not a CUDA device.
        """
        return None if self.reserved is None else self.reserved.peak_reserved_bytes

    @property
    def fragmentation_bytes(self) -> int | None:
        """Bytes that were reserved but not allocated when the peak of reserved memory occurred."""
        return None if self.reserved is None else self.reserved.fragmentation_bytes

    @property
    def nvidia_smi_bytes(self) -> int | None:
        """Peak bytes that ``nvidia-smi`` would show for the process: reserved memory, and a round
        512 MiB for the CUDA context.
        """
        reserved = self.peak_reserved_bytes
        return None if reserved is None else reserved + CONTEXT_BYTES

    @property
    def after_step_reserved_bytes(self) -> int | None:
        """Bytes reserved after the last step, as ``torch.cuda.memory_reserved()``."""
        return None if self.reserved is None else self.reserved.last_reserved_bytes

    @cached_property
    def reserved(self) -> Reserved | None:
        """Reserved memory on a device with unlimited memory; None without a GPU."""
        return None if self.gpu is None else self._replay(DeviceMemory(None, self._total))[0]

    def reserved_within(self, capacity_bytes: int, total_bytes: int | None = None) -> Reserved:
        """Reserved memory on a device with limited memory: the allocator releases cached blocks
        before it fails; ``fits`` of the result says whether the step succeeds.

        Args:
            capacity_bytes: memory that the allocator can get.
            total_bytes: memory of the device; by default that of the GPU.
        """
        settings, known = self.step.allocator, vars(self).get("reserved")
        is_plain = settings.per_process_memory_fraction == 1.0
        is_plain = is_plain and settings.max_split_bytes == UNLIMITED
        if is_plain and known is not None and known.peak_reserved_bytes <= capacity_bytes:
            return known  # type: ignore[no-any-return]
        found = self._replay(DeviceMemory(capacity_bytes, total_bytes or self._total))[0]
        if is_plain and found.fits and not found.num_retries:  # no request was refused
            vars(self)["reserved"] = found
        return found

    def snapshot(self) -> dict[str, Any]:
        """A memory snapshot of the steps, in the format of ``torch.cuda.memory._snapshot()``.

        https://pytorch.org/memory_viz and ``torch.cuda._memory_viz`` show the pickled snapshot
        (:meth:`write_snapshot`). An allocation's frames are its operator, its module and the line
        of your code; times are the numbers of the actions.

        Raises:
            DeviceError: if the device is not a CUDA device.
        """
        if self.gpu is None:
            raise DeviceError(
                f"a snapshot is of CUDA's allocator, and the step runs on {self.device}: give "
                "estimate device='cuda' or gpu="
            )
        allocator = self._replay(DeviceMemory(None, self._total), trace=True)[1]
        return snapshot_of(allocator, int(self.device.partition(":")[2] or 0))

    def write_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`snapshot` to a file, pickled, as ``torch.cuda.memory._dump_snapshot`` does.

        Raises:
            DeviceError: if the device is not a CUDA device.
        """
        check_path(path, "path")
        data = pickle.dumps(self.snapshot())
        Path(path).write_bytes(data)

    def reserved_to_dict(self) -> dict[str, Any]:
        """The figures of reserved memory, as a dict for JSON."""
        return {
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "fragmentation_bytes": self.fragmentation_bytes,
            "nvidia_smi_bytes": self.nvidia_smi_bytes,
            "after_step_reserved_bytes": self.after_step_reserved_bytes,
            "allocator": self.step.allocator.text,
        }

    @property
    def _total(self) -> int | None:
        return None if self.gpu is None else self.gpu.total_memory

    def _replay(
        self, memory: DeviceMemory, *, trace: bool = False
    ) -> tuple[Reserved, CachingAllocator]:
        settings, runs = self.step.allocator, self._traced_runs if trace else self._runs
        return replay(runs, settings, memory, first=self._first_run, trace=trace)

    @cached_property
    def _runs(self) -> list[Run]:
        """The steps in order, and the evaluation."""
        # if the first step was tracked separately, that step has allocated the workspaces
        num_bytes = 0 if self.first_lives is not None else self.workspace_bytes
        known: dict[int, Run] = {}
        for each in self.steps or (self,):
            if id(each) not in known:
                known[id(each)] = _run_of(each.lives, 0 if known else num_bytes, self.step.mode)
        runs = [known[id(each)] for each in self.steps or (self,)]
        if self.evaluation is not None:
            after = _run_of(self.evaluation.lives, 0, self.evaluation.mode)
            runs.append(after._replace(kept=tuple(map(CATEGORIES.index, KEPT))))
        return runs

    @property
    def _traced_runs(self) -> list[Run]:
        """The steps in order, with the stack frames of each storage as its tag."""
        lives = [each.lives for each in self.steps or (self,)]
        lives += [] if self.evaluation is None else [self.evaluation.lives]
        known: dict[int, Run] = {}
        for run, rows in zip(self._runs, lives, strict=True):
            known.setdefault(id(run), run._replace(tags=list(_frames(rows))))
        return [known[id(run)] for run in self._runs]

    @cached_property
    def _first_run(self) -> Run | None:
        first = (self.steps or (self,))[0].first_lives
        return None if first is None else _run_of(first, self.workspace_bytes, self.step.mode)


KEPT = ("gradients", "optimizer state")
"""What a pass of evaluation finds allocated, and does not use."""


def _frames(lives: Lifetimes) -> Iterator[list[Frame]]:
    """The stack frames of each storage's allocation, innermost first."""
    known: dict[Any, list[Frame]] = {}
    rows = zip(lives.op, lives.module, lives.category.tolist(), lives.location, strict=True)
    for key in rows:
        if key not in known:
            known[key] = _frames_of(*key)
        yield known[key]


def _run_of(lives: Lifetimes, workspace_bytes: int, mode: str) -> Run:
    # the KV cache that a later pass of generation finds has another phase: it is not old
    is_old = np.array([op == "" for op in lives.op], dtype=bool)
    is_old &= lives.phase == PHASES.index("start")
    return Run(
        num_bytes=lives.num_bytes,
        allocated_at=lives.allocated_at,
        freed_at=lives.freed_at,
        kind=lives.category,
        is_old=is_old,
        lasts=is_old | (lives.category == CATEGORIES.index("optimizer state")),
        num_events=lives.num_events,
        stream=lives.stream,
        used_on={row: streams for row, streams in enumerate(lives.used_on) if streams},
        workspaces=_workspaces(lives, workspace_bytes, mode),
    )


def _frames_of(op: str, module: str, category: int, location: RawLocation | None) -> list[Frame]:
    name = op or CATEGORIES[category]
    frames = [_frame("operator", name), _frame("module", module or "(root)")]
    if op and location is not None:
        at = SourceLocation(*location)
        frames.append(_frame(at.code.co_filename, at.code.co_name, at.line))
    return frames


def _frame(filename: str, name: str, line: int = 0) -> Frame:
    return {"filename": filename, "line": line, "name": name}


def _workspaces(lives: Lifetimes, num_bytes: int, mode: str) -> tuple[tuple[int, int], ...]:
    """The event and bytes of each cuBLAS workspace: a thread's is allocated at its first product
    (``getCUDABlasWorkspace`` in aten/src/ATen/cuda/CublasHandlePool.cpp) and never freed.
    """
    backward = lives.phase == PHASES.index("backward")
    threads = [~backward, backward] if mode == "training" else [~backward]
    products = np.array([is_matrix_product(op) for op in lives.op], dtype=bool)
    ran = np.array([op != "" for op in lives.op], dtype=bool)
    found = []
    for rows in threads:
        first = np.flatnonzero(rows & products)
        if not len(first):
            first = np.flatnonzero(rows & ran)
        if len(first) and num_bytes:
            found.append((int(lives.allocated_at[first[0]]), num_bytes // len(threads)))
    return tuple(found)
