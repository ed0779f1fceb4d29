"""What an estimate says of reserved memory: the step's allocations, sent through the allocator.

Input: the lifetimes of a step's storages. Output: the part of an :class:`Estimate` that is about
the caching allocator and what is above it. Invariant: a CPU has no such allocator: all is None
there.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from torchfake._core.arguments import check_path
from torchfake._core.gpu_profiles import CudaProfile
from torchfake._core.source_location import RawLocation, SourceLocation
from torchfake.errors import DeviceError
from torchfake.inspect.allocator.caching_allocator import CachingAllocator
from torchfake.inspect.allocator.device_memory import DeviceMemory
from torchfake.inspect.allocator.outside import CONTEXT_BYTES
from torchfake.inspect.allocator.replay import Reserved, Run, replay
from torchfake.inspect.allocator.snapshot import Frame, snapshot_of
from torchfake.inspect.run.cuda_memory import is_matrix_product
from torchfake.inspect.run.lifetimes import CATEGORIES, PHASES, Lifetimes
from torchfake.inspect.run.step import Step


class ReservedMemory:
    """Reserved memory of a step on a CUDA device."""

    device: str
    gpu: CudaProfile | None
    lives: Lifetimes
    step: Step
    first_lives: Lifetimes | None
    workspace_bytes: int

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The most that the caching allocator holds, as ``torch.cuda.max_memory_reserved()``: in
        step after step, until none reserves more. None if the device is not a CUDA device.
        """
        return None if self.reserved is None else self.reserved.peak_reserved_bytes

    @property
    def fragmentation_bytes(self) -> int | None:
        """What of the peak of reserved memory was not allocated when it was reached."""
        return None if self.reserved is None else self.reserved.fragmentation_bytes

    @property
    def nvidia_smi_bytes(self) -> int | None:
        """The most that ``nvidia-smi`` would show for the process: what is reserved, and the CUDA
        context, for which a round 512 MiB are taken.
        """
        reserved = self.peak_reserved_bytes
        return None if reserved is None else reserved + CONTEXT_BYTES

    @cached_property
    def reserved(self) -> Reserved | None:
        """What the caching allocator does, if the device has all the memory it asks for."""
        return None if self.gpu is None else self._replay(DeviceMemory(None, self._total))[0]

    def reserved_within(self, capacity_bytes: int, total_bytes: int | None = None) -> Reserved:
        """What the caching allocator does with so much memory: it releases what it caches before it
        gives up; ``fits`` says whether it did not have to.

        Args:
            capacity_bytes: what the allocator can get.
            total_bytes: what the device has in all; as the GPU has it, if not given.
        """
        return self._replay(DeviceMemory(capacity_bytes, total_bytes or self._total))[0]

    def snapshot(self) -> dict[str, Any]:
        """A memory snapshot of the steps, in the format of ``torch.cuda.memory._snapshot()``.

        Pickled (:meth:`write_snapshot`), it is shown by https://pytorch.org/memory_viz and by
        ``torch.cuda._memory_viz``. An allocation's frames are its operator, its module and the line
        of your code; times are the numbers of the actions.

        Raises:
            DeviceError: if the device is not a CUDA device.
        """
        if self.gpu is None:
            raise DeviceError(
                f"a snapshot is of CUDA's allocator, and the step runs on {self.device}: give "
                "estimate device='cuda' or gpu="
            )
        tags = list(self._frames())
        allocator = self._replay(DeviceMemory(None, self._total), trace=True, tags=tags)[1]
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
        """The figures, ready for JSON."""
        return {
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "fragmentation_bytes": self.fragmentation_bytes,
            "nvidia_smi_bytes": self.nvidia_smi_bytes,
            "allocator": self.step.allocator.text,
        }

    @property
    def _total(self) -> int | None:
        return None if self.gpu is None else self.gpu.total_memory

    def _replay(
        self, memory: DeviceMemory, *, trace: bool = False, tags: Sequence[Any] | None = None
    ) -> tuple[Reserved, CachingAllocator]:
        settings, first = self.step.allocator, self._first_run
        return replay(self._run, settings, memory, first=first, trace=trace, tags=tags)

    @cached_property
    def _run(self) -> Run:
        # a program's first step was tracked for itself: it has asked for the workspaces
        num_bytes = 0 if self.first_lives is not None else self.workspace_bytes
        return _run_of(self.lives, num_bytes, self.step.mode)

    @cached_property
    def _first_run(self) -> Run | None:
        if self.first_lives is None:
            return None
        return _run_of(self.first_lives, self.workspace_bytes, self.step.mode)

    def _frames(self) -> Iterator[list[Frame]]:
        """Of each storage, innermost first."""
        lives = self.lives
        known: dict[Any, list[Frame]] = {}
        rows = zip(lives.op, lives.module, lives.category.tolist(), lives.location, strict=True)
        for key in rows:
            if key not in known:
                known[key] = _frames_of(*key)
            yield known[key]


def _run_of(lives: Lifetimes, workspace_bytes: int, mode: str) -> Run:
    # a cache that later passes of generation find was not there before the first
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
    """When the workspaces of cuBLAS are asked for: each thread's at its first matrix product, by
    ``getCUDABlasWorkspace`` in aten/src/ATen/cuda/CublasHandlePool.cpp; they are never freed.
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
