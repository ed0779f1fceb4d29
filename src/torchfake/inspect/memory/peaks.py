"""The peaks of a step at other sizes and on other GPUs.

Input: an estimate, the size that varies, a GPU. Output: peaks of reserved memory. Invariant: every
peak was measured by a run on fakes, of that GPU or of one that answers all of its questions alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np
import torch

from torchfake._core.gpu_profiles import AlikeGpus, CudaProfile
from torchfake.errors import TorchFakeError, UnknownValueError
from torchfake.inspect.copies.workload import Workload, kind_of
from torchfake.inspect.inputs.resizing import resized, size_of
from torchfake.inspect.memory.estimate import measure
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.limited import fitted_bytes, reserved_on
from torchfake.inspect.steps.step import Step
from torchfake.inspect.storages.cuda_memory import CUDA_ROUNDING
from torchfake.inspect.storages.lifetimes import CATEGORIES, PHASES


class Peaks:
    """Peaks of a step by GPU and size. A run stands for all GPUs on which the step runs alike."""

    mesh: str | None = None  # of a plan: the ranks that run, each on its own GPU

    def __init__(
        self,
        estimate: Estimate,
        vary: str | None,
        reserved_bytes: int,
        gpus: Iterable[CudaProfile] = (),
    ) -> None:
        self.vary, self.reserved_bytes = vary, reserved_bytes
        self.gpus = tuple(gpus)  # that a run may stand for
        self.failures: dict[int | None, Exception] = {}  # the last error of a run at each size
        self.too_large: set[int] = set()  # sizes at which the step reads unknown values
        self.estimate = estimate
        self._measured: dict[CudaProfile, dict[int | None, Any]] = {}
        self._reserved: dict[tuple[int, int, bool], int] = {}  # by result, capacity, exactness
        if estimate.subject.alike is not None:  # the estimate is of a run for these GPUs
            self.keep(estimate, self.current_size(), estimate.subject.alike)

    def usable_bytes(self, gpu: CudaProfile) -> int:
        """Memory of a GPU that the caching allocator can use."""
        return gpu.total_memory - self.reserved_bytes

    def current_size(self) -> int | None:
        """The size of the estimate's inputs, or of what it serves; None if nothing varies."""
        if self.vary is None:
            return None
        serve = self.estimate.step.serve
        if serve is not None:
            return serve.context if self.vary == "context" else serve.users
        return size_of(self.estimate.subject, self.vary)

    def measured(self, gpu: CudaProfile) -> dict[int | None, Any]:
        """The results on this GPU, by size; None if the step does not run at that size."""
        return self._measured.setdefault(gpu, {})

    def peak(self, gpu: CudaProfile, size: int | None, *, only_if_fits: bool = False) -> int | None:
        """Peak bytes reserved on this GPU; None if the step does not run at that size.

        Args:
            gpu: the GPU.
            size: the size of the inputs.
            only_if_fits: if the step does not fit, any number of bytes that is too large will do.
                The allocator is not replayed if more is allocated than the GPU has.
        """
        measured = self.measured(gpu)
        if size not in measured:
            self._measure(gpu, size)
        found = measured[size]
        if found is None:
            return None
        usable = self.usable_bytes(gpu)
        if only_if_fits and (least := self._least_reserved(found)) > usable:
            return least
        key = id(found), usable, only_if_fits
        if key not in self._reserved:
            told = fitted_bytes if only_if_fits else reserved_on
            each = (told(one, usable, gpu.total_memory) for one in self.estimates(found))
            self._reserved[key] = max(each)
        return self._reserved[key]

    def _measure(self, gpu: CudaProfile, size: int | None) -> None:
        """Run the step, for this GPU and all others on which it runs alike."""
        others = (each for each in self.gpus if each != gpu and size not in self.measured(each))
        alike = AlikeGpus(gpu, *others)
        self.keep(self._run_if_known(gpu, size, alike), size, alike)

    def keep(self, found: Any, size: int | None, alike: AlikeGpus) -> None:
        """Keep the result of a run for the GPUs that it stands for. Those on which all allocations
        are the same share one record, and what is computed of it.
        """
        kept: dict[Any, Any] = {}
        for gpu in alike.profiles:
            kind = None if found is None else found.kind_on(gpu)
            if kind not in kept:
                kept[kind] = None if found is None else found.on(gpu)
            self.measured(gpu)[size] = kept[kind]

    def timed(self, gpu: CudaProfile, size: int | None) -> Estimate | None:
        """The estimate on this GPU at a size that was measured, with its time; None for plans,
        whose ranks wait for each other.
        """
        found = self.measured(gpu)[size]
        if not isinstance(found, Estimate):
            return None
        return found if found.gpu == gpu else found.on(gpu)

    def _least_reserved(self, found: Any) -> int:
        """Bytes that the allocator reserves at least: those that are allocated at the peak."""
        each = self.estimates(found)
        return max((one.peak_bytes for one in each if one.round_to <= CUDA_ROUNDING), default=0)

    def allocated(self, gpu: CudaProfile, size: int) -> int:
        """Peak bytes allocated at a size that was measured, regardless of the GPU's memory."""
        return max(each.peak_bytes for each in self.estimates(self.measured(gpu)[size]))

    def least_bytes(self, gpu: CudaProfile) -> int:
        """Bytes that are held at the start of the step at any size: parameters and buffers."""
        found = next((each for each in self.measured(gpu).values() if each is not None), None)
        each = [] if found is None else self.estimates(found)
        return max((_bytes_of_module(one) for one in each), default=0)

    def shown(self, gpu: CudaProfile, size: int | None) -> Estimate:
        """The estimate that was measured at this size, for this GPU."""
        found = max(self.estimates(self.measured(gpu)[size]), key=lambda each: each.peak_bytes)
        return replace(found, gpu=gpu, subject=replace(found.subject, gpu=gpu))

    def estimates(self, found: Any) -> list[Estimate]:
        """The estimates in a result: of a plan, one for each rank."""
        return [found]

    def _run_if_known(self, gpu: CudaProfile, size: int | None, alike: AlikeGpus) -> Any:
        try:
            return self._run(gpu, size, alike)
        except UnknownValueError:
            if size is None or size <= (self.current_size() or 0):
                raise
            self.too_large.add(size)
            return None

    def _run(self, gpu: CudaProfile, size: int | None, alike: AlikeGpus) -> Any:
        workload = self.estimate.subject
        device = workload.device
        if device is None or device.type != "cuda":
            device = torch.device("cuda", 0)
        workload = replace(workload, gpu=gpu, alike=alike, device=device)
        step: Step | None = self.estimate.step
        try:
            if size is not None and self.vary is not None:
                workload, step = _varied(workload, self.estimate.step, self.vary, size)
            if step is None:
                return None
            is_given = size is None or (step.serve is None and size == self.current_size())
            return measure(workload, step, is_timed=is_given)  # only the given size is shown
        except TorchFakeError:
            raise
        except Exception as error:
            self.failures[size] = error
            return None


@singledispatch
def peaks_of(
    found: Any, vary: str | None, reserved_bytes: int | None, gpus: Iterable[CudaProfile]
) -> Peaks:
    """The peaks of a plan, each measured by planning again; ``distributed`` registers how.

    Args:
        found: a plan.
        vary: the size of one rank's inputs that varies, ``"batch"`` or ``"seq"``, or None.
        reserved_bytes: memory of the GPU that the caching allocator cannot use; by default the
            value of the plan.
        gpus: the GPUs that a run may stand for.
    """
    raise TypeError(f"fit takes a model, or the result of estimate or plan, not {kind_of(found)}")


def _bytes_of_module(estimate: Estimate) -> int:
    """Bytes of the parameters and buffers that exist on the device before the step."""
    lives = estimate.lives
    of_module = [CATEGORIES.index(name) for name in ("parameters", "buffers")]
    is_old = np.array([op == "" for op in lives.op], dtype=bool)
    is_old &= (lives.phase == PHASES.index("start")) & np.isin(lives.category, of_module)
    return int(lives.num_bytes[is_old].sum())


def _varied(workload: Workload, step: Step, vary: str, size: int) -> tuple[Workload, Step | None]:
    """The workload and the step at another size; None for the step if that size is impossible."""
    if step.serve is None:
        return resized(workload, vary, size), step
    serve = step.serve.resized(vary, size)
    return workload, None if serve is None else replace(step, serve=serve)
