"""The search for the largest size at which a step fits on a GPU.

Input: what was run, what varies, a GPU. Output: peaks of reserved memory by size; the largest size
whose peak fits. Invariant: every peak was measured by a run on fakes of that GPU; nothing is
extrapolated.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch

from torchfake._core.gpu_profiles import ROCM, CudaProfile
from torchfake.errors import TorchFakeError, UnknownValueError
from torchfake.inspect.copies.workload import Workload
from torchfake.inspect.inputs.resizing import resized, size_of
from torchfake.inspect.memory.estimate import measure
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.steps.step import Step

MAX_SIZE = 1 << 24
"""The largest size that the search tries."""

_NEAR = 32
"""Sizes that differ by less than this part of them are near to each other."""

Kind = tuple[str, int, int]


def kind_of(gpu: CudaProfile) -> Kind:
    """What kernels and workspaces depend on: the major version of the compute capability alone; of
    GPUs of AMD the minor one, too.
    """
    return gpu.backend, gpu.major, gpu.minor if gpu.backend == ROCM else 0


class Peaks:
    """Peaks by kind of GPU and size, each measured once."""

    mesh: str | None = None  # the ranks that run, each on a GPU of its own, if there are several

    def __init__(self, estimate: Estimate, vary: str | None, reserved_bytes: int) -> None:
        self.vary, self.reserved_bytes = vary, reserved_bytes
        self.failure: Exception = RuntimeError("it was not run")  # the last
        self.too_large: set[int] = set()  # sizes at which fakes do not keep values that are asked
        self.estimate = estimate
        self._measured: dict[Kind, dict[int | None, Any]] = {}
        self._reserved: dict[tuple[Kind, int, int | None], int] = {}  # by capacity and size, too

    def usable_bytes(self, gpu: CudaProfile) -> int:
        """Of a GPU, by the caching allocator."""
        return gpu.total_memory - self.reserved_bytes

    def current_size(self) -> int | None:
        """The size that was run."""
        return None if self.vary is None else size_of(self.estimate.subject, self.vary)

    def measured(self, gpu: CudaProfile) -> dict[int | None, Any]:
        """What ran on such a GPU, by size; None: the step does not run at that size."""
        return self._measured.setdefault(kind_of(gpu), {})

    def peak(self, gpu: CudaProfile, size: int | None) -> int | None:
        """What is reserved at most on this GPU, or None if the step does not run at that size."""
        measured = self.measured(gpu)
        if size not in measured:
            measured[size] = self._run_if_known(gpu, size)
        found = measured[size]
        if found is None:
            return None
        usable = self.usable_bytes(gpu)
        key = kind_of(gpu), usable, size
        if key not in self._reserved:
            self._reserved[key] = max(
                reserved_on(each, usable, gpu.total_memory) for each in self._estimates(found)
            )
        return self._reserved[key]

    def allocated(self, gpu: CudaProfile, size: int) -> int:
        """What is allocated at most at a size that was measured, whatever the GPU has."""
        return max(each.peak_bytes for each in self._estimates(self.measured(gpu)[size]))

    def shown(self, gpu: CudaProfile, size: int | None) -> Estimate:
        """The step that was run at this size, for this GPU."""
        found = max(self._estimates(self.measured(gpu)[size]), key=lambda each: each.peak_bytes)
        return replace(found, gpu=gpu, subject=replace(found.subject, gpu=gpu))

    def _estimates(self, found: Any) -> list[Estimate]:
        """Of what ran, the steps of all that run at once."""
        return [found]

    def _run_if_known(self, gpu: CudaProfile, size: int | None) -> Any:
        try:
            return self._run(gpu, size)
        except UnknownValueError:
            if size is None or size <= (self.current_size() or 0):
                raise
            self.too_large.add(size)
            return None

    def _run(self, gpu: CudaProfile, size: int | None) -> Any:
        workload = self.estimate.subject
        device = workload.device
        if device is None or device.type != "cuda":
            device = torch.device("cuda", 0)
        workload = replace(workload, gpu=gpu, device=device)
        step: Step | None = self.estimate.step
        try:
            if size is not None and self.vary is not None:
                workload, step = _varied(workload, self.estimate.step, self.vary, size)
            if step is None:
                return None
            is_given = size is None or (step.serve is None and size == self.current_size())
            return measure(workload, step, is_timed=is_given)  # it is what is shown
        except TorchFakeError:
            raise
        except Exception as error:
            self.failure = error
            return None


@singledispatch
def peaks_of(found: Any, vary: str | None, reserved_bytes: int | None) -> Peaks:
    """The peaks of a plan, each measured by planning again; plans register what does that.

    Args:
        found: what was planned.
        vary: ``"batch"`` or ``"seq"`` of the inputs of a rank, or None.
        reserved_bytes: of the GPU's memory, not for the caching allocator; those of the plan, if
            None.
    """
    raise TypeError(
        f"fit takes the result of estimate, not a {type(found).__name__} (a plan, or with serve= a "
        "model)"
    )


def _varied(workload: Workload, step: Step, vary: str, size: int) -> tuple[Workload, Step | None]:
    """The workload or the step at another size; None: there is none of that size."""
    if step.serve is None:
        return resized(workload, vary, size), step
    serve = step.serve.resized(vary, size)
    return workload, None if serve is None else replace(step, serve=serve)


def reserved_on(estimate: Estimate, usable_bytes: int, total_bytes: int) -> int:
    """What the caching allocator reserves at most for a step on a GPU where it gets so much; more
    than that, if the step does not fit.
    """
    reserved = estimate.peak_reserved_bytes
    assert reserved is not None, "the estimate is for a GPU"
    whole = estimate.step.allocator.per_process_memory_fraction == 1.0
    if whole and (reserved <= usable_bytes or estimate.peak_bytes > usable_bytes):
        return reserved
    within = estimate.reserved_within(usable_bytes, total_bytes)
    return within.peak_reserved_bytes if within.fits else max(reserved, usable_bytes + 1)


class Search:
    """The search for the largest size that fits.

    Allocated bytes grow almost linearly with the size, so the search begins where the line through
    the peaks that are known meets the limit. The caching allocator needs somewhat more than is
    allocated: from there the search goes on in growing steps until the answer is between two of
    them, and then halves what is left. If a model does not run at a size, but does at the multiple
    of its given size just below, only such multiples are tried from then on.
    """

    def __init__(
        self,
        peaks: Peaks,
        gpu: CudaProfile,
        size: int,
        highest: int = MAX_SIZE,
        multiple_of: int = 1,
    ) -> None:
        self.peaks, self.gpu, self.size = peaks, gpu, size
        self.usable_bytes = peaks.usable_bytes(gpu)
        self.highest = highest  # size to try
        self.multiple_of = multiple_of  # sizes to try

    def run(self) -> tuple[int, str]:
        """The largest size that fits, and what limits it."""
        proposed = self._proposed()
        while True:
            low, high, limit = self._bounds()
            size = self._untried(low, high, next(proposed))
            if size is None:
                return low, limit
            if self.peaks.peak(self.gpu, size) is None and self.multiple_of == 1:
                multiple = size // self.size * self.size
                if low < multiple < size and self.peaks.peak(self.gpu, multiple) is not None:
                    self.multiple_of = self.size

    def _proposed(self) -> Iterator[int]:
        """Sizes to try, each chosen by what was measured until then."""
        met = yield from self._along_the_line()
        yield from self._away_from(met)
        while True:
            yield self._middle()

    def _along_the_line(self) -> Generator[int, None, int]:
        """Where the line meets the limit, which is returned once it is near the last such size."""
        while (met := self._met()) is None or met > self._farthest():
            yield self._middle()
        while True:
            last = met
            yield last
            low, high, _ = self._bounds()
            met = self._met() or last
            if not low < met < high or abs(met - last) <= max(1, last // _NEAR):
                return last

    def _away_from(self, size: int) -> Iterator[int]:
        """In growing steps, up if this size fits and else down, to the other side of the limit."""
        step, sign = 1, 1 if size <= self._bounds()[0] else -1
        while True:
            size += sign * step
            step = max(2 * step, size // _NEAR)
            yield size
            low, high, _ = self._bounds()
            if size != (low if sign > 0 else high):
                return

    def _measured(self) -> dict[int, int | None]:
        sizes = [n for n in self.peaks.measured(self.gpu) if n is not None]
        return {n: self.peaks.peak(self.gpu, n) for n in sizes}

    def _bounds(self) -> tuple[int, int, str]:
        """The largest size known to fit, the smallest known not to, and why that does not."""
        measured = self._measured()
        ran = {n: peak for n, peak in measured.items() if peak is not None}
        low = max((n for n, peak in ran.items() if peak <= self.usable_bytes), default=0)
        too_large = [n for n, peak in ran.items() if peak > self.usable_bytes and n > low]
        failing = [
            n for n in measured if n > max(ran) and n not in ran and n % self.multiple_of == 0
        ]
        high = min([*too_large, *failing], default=self.highest + 1)
        if high in too_large:
            return low, high, "memory"
        is_of_model = high in failing or self.highest < MAX_SIZE
        is_known = high not in self.peaks.too_large
        return low, high, "model" if is_of_model and is_known else "search"

    def _met(self) -> int | None:
        """The size at which the line meets the limit that goes through the two peaks nearest to it;
        None if only one is known.
        """
        sizes = [n for n, peak in self._measured().items() if peak]
        peaks = [(n, self.peaks.allocated(self.gpu, n)) for n in sizes]
        (n, at_n), *others = sorted(peaks, key=lambda each: abs(each[1] - self.usable_bytes))
        for m, at_m in others:
            if (at_n - at_m) * (n - m) > 0:  # they rise
                return n + int((self.usable_bytes - at_n) * (n - m) / (at_n - at_m))
        return None

    def _farthest(self) -> int:
        """Sizes above it are not tried before any that does not fit is known."""
        low, high, _ = self._bounds()
        return high if high <= self.highest else min(8 * low, self.highest)

    def _middle(self) -> int:
        """Half way between the bounds; far above the lower one while there is no upper one; and 1
        before all else that is lower than what does not fit: what fits at no size ends there.
        """
        low, high, _ = self._bounds()
        if low == 0 and 1 not in self.peaks.measured(self.gpu):
            return 1
        return (low + high) // 2 if high <= self.highest else self._farthest()

    def _untried(self, low: int, high: int, proposed: int) -> int | None:
        """The size nearest to the proposed one that is between the bounds and was not tried."""
        measured, unit = self._measured(), self.multiple_of
        first, last = low // unit + 1, (high - 1) // unit
        near = min(max(proposed // unit, first), last)
        for distance in range(max(near - first, last - near) + 1):
            for number in (near + distance, near - distance):
                if first <= number <= last and number * unit not in measured:
                    return number * unit
        return None
