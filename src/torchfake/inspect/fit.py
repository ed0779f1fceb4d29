"""Which GPUs a step fits on, and how large a batch or sequence would.

Input: an estimate, the profiles of GPUs. Output: a :class:`Fit` for each. Invariant: every peak was
measured by a run on fakes of that GPU, and judged by what the caching allocator reserves for it;
nothing is extrapolated. Called by: the user, and ``inspection``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchfake._arguments import is_whole_number
from torchfake._core.gpu_profiles import CudaProfile, profile, profiles
from torchfake.errors import InputsError, TorchFakeError
from torchfake.inspect.allocator.outside import CONTEXT_BYTES, MARGIN_BYTES
from torchfake.inspect.base_record import Record
from torchfake.inspect.describe.messages import one_line
from torchfake.inspect.estimates import Estimate
from torchfake.inspect.inputs.resizing import BATCH, SEQ, resized, size_of
from torchfake.inspect.memory import measure

RESERVED_BYTES = CONTEXT_BYTES + MARGIN_BYTES
"""Memory that the caching allocator does not get, by default 1 GiB: 512 MiB for the CUDA context,
512 MiB as a margin, for what kernels take while they run. Round figures, not measured ones."""

MAX_SIZE = 1 << 24
"""The largest size that the search tries."""


@dataclass(frozen=True)
class Fit:
    """Whether a step fits on one GPU."""

    gpu: str  # the profile's name
    total_bytes: int  # of the GPU's memory
    reserved_bytes: int  # of it, not for the caching allocator: the CUDA context, and a margin
    peak_bytes: int  # of the step, at the size it was estimated for
    vary: str | None  # "batch" or "seq"
    size: int | None  # of the batch or sequence it was estimated for
    largest: int | None  # size that fits; 0: none does
    limited_by: str | None  # "memory", "model" (it does not run on more) or "search" (MAX_SIZE)
    peak_reserved_bytes: int  # by the caching allocator for the step; the verdict is by these

    @property
    def fits(self) -> bool:
        """Whether it fits at the size it was estimated for."""
        return self.headroom_bytes >= 0

    @property
    def headroom_bytes(self) -> int:
        """Bytes that are left beside what is reserved at most; if negative, bytes that are missing.

        Where memory is short, the allocator releases what it caches before it gives up, so a step
        that would reserve more if it could may fit with little left.
        """
        return self.total_bytes - self.reserved_bytes - self.peak_reserved_bytes

    def to_dict(self) -> dict[str, Any]:
        """All fields and what follows from them, ready for JSON."""
        return {**self.__dict__, "fits": self.fits, "headroom_bytes": self.headroom_bytes}


@dataclass(frozen=True, repr=False)
class Fits(Record, Sequence[Fit]):
    """A step on several GPUs."""

    estimate: Estimate
    items: tuple[Fit, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def to_dict(self) -> dict[str, Any]:
        """The estimate and all fits, ready for JSON."""
        return {
            "estimate": self.estimate.to_dict(),
            "fits": [fit.to_dict() for fit in self.items],
        }


def fit(
    estimate: Estimate,
    *gpus: str | CudaProfile,
    vary: str | None = BATCH,
    reserved_bytes: int = RESERVED_BYTES,
) -> Fits:
    """Which GPUs the step of an estimate fits on, and the largest batch or sequence that would.

    The step is run again for each kind of GPU, on fakes: kernels and workspaces differ. The largest
    size is found by running it at other sizes, between one that fits and one that does not.

    Args:
        estimate: of :func:`estimate`, on any device.
        gpus: profiles or their names, see :func:`torchfake.profiles`; all of these if none is
            given.
        vary: ``"batch"``, ``"seq"``, or None for neither.
        reserved_bytes: of the GPU's memory, not for the caching allocator: 512 MiB for the CUDA
            context and 512 MiB as a margin, if not given.

    Raises:
        DeviceError: if there is no such profile.
        InputsError: if the inputs have no such size.

    >>> from torchfake import fake_mode
    >>> from torchfake.inspect import estimate
    >>> with fake_mode():
    ...     layer, x = torch.nn.Linear(8192, 8192), torch.empty(1024, 8192)
    >>> found, = fit(estimate(layer, x, optimizer="adamw"), "t4-16gb")
    >>> found.fits, found.largest > 100_000
    (True, True)
    """
    if not isinstance(estimate, Estimate):
        raise TypeError(f"fit takes what estimate gives, not a {type(estimate).__name__}")
    if not is_whole_number(reserved_bytes, 0):
        raise InputsError(f"reserved_bytes={reserved_bytes!r} is not a number of bytes")
    if vary not in (None, BATCH, SEQ):
        raise InputsError(f"vary={vary!r} is not 'batch', 'seq' or None")
    if vary is not None and estimate.subject.program is not None:
        raise InputsError(
            f"{estimate.class_name} is a step of your own, whose inputs cannot be resized here: "
            "use vary=None, and estimate it with other inputs"
        )
    if vary == SEQ and estimate.step.decode is not None:
        raise InputsError(
            "decode= gives the lengths itself, so 'seq' cannot vary: use vary='batch' or None"
        )
    if len(estimate.subject.cuda_devices()) > 1:
        raise InputsError(
            "the step runs on several GPUs; fit finds out whether all of it fits on one"
        )
    named = {g.name if isinstance(g, CudaProfile) else g: profile(g) for g in gpus} or profiles()
    size = None if vary is None else size_of(estimate.subject, vary)
    peaks = _Peaks(estimate, vary, reserved_bytes)
    return Fits(
        estimate,
        tuple(_fit(name, gpu, peaks, size) for name, gpu in named.items()),
    )


def _fit(name: str, gpu: CudaProfile, peaks: _Peaks, size: int | None) -> Fit:
    reserved = peaks.peak(gpu, size)
    found = peaks.measured(gpu)[size]
    if reserved is None or found is None:
        raise InputsError(f"the step does not run on {name}: {one_line(peaks.failure)}")
    sizes = gpu.total_memory, peaks.reserved_bytes, found.peak_bytes
    fitted = Fit(name, *sizes, peaks.vary, size, None, None, reserved)
    if size is None:
        return fitted
    largest, limit = _Search(peaks, gpu, peaks.usable_bytes(gpu), size).run()
    return replace(fitted, largest=largest, limited_by=limit)


class _Peaks:
    """Peaks by kind of GPU and size, each measured once."""

    def __init__(self, estimate: Estimate, vary: str | None, reserved_bytes: int) -> None:
        self.vary, self.reserved_bytes = vary, reserved_bytes
        self.failure: Exception = RuntimeError("it was not run")  # the last
        self._estimate = estimate
        self._measured: dict[int, dict[int | None, Estimate | None]] = {}
        self._reserved: dict[tuple[int, int, int | None], int] = {}  # by major, capacity and size

    def usable_bytes(self, gpu: CudaProfile) -> int:
        """Of a GPU, by the caching allocator."""
        return gpu.total_memory - self.reserved_bytes

    def measured(self, gpu: CudaProfile) -> dict[int | None, Estimate | None]:
        """The estimates for such a GPU by size; None: the step does not run at that size.

        Kernels and workspaces depend on the major version of the compute capability alone.
        """
        return self._measured.setdefault(gpu.major, {})

    def peak(self, gpu: CudaProfile, size: int | None) -> int | None:
        """What is reserved at most on this GPU, or None if the step does not run at that size."""
        measured = self.measured(gpu)
        if size not in measured:
            measured[size] = self._run(gpu, size)
        found = measured[size]
        if found is None:
            return None
        usable = self.usable_bytes(gpu)
        key = gpu.major, usable, size
        if key not in self._reserved:
            self._reserved[key] = reserved_on(found, usable, gpu.total_memory)
        return self._reserved[key]

    def _run(self, gpu: CudaProfile, size: int | None) -> Estimate | None:
        workload = self._estimate.subject
        device = workload.device
        if device is None or device.type != "cuda":
            device = torch.device("cuda", 0)
        workload = replace(workload, gpu=gpu, device=device)
        try:
            if size is not None and self.vary is not None:
                workload = resized(workload, self.vary, size)
            return measure(workload, self._estimate.step)
        except TorchFakeError:
            raise
        except Exception as error:
            self.failure = error
            return None


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


class _Search:
    """The search for the largest size that fits.

    Bisection alternates with interpolation: the size at which the line through both bounds meets
    the limit. Memory grows linearly with the batch once activations outweigh the optimizer. If a
    model does not run at a size, but does at the multiple of its given size just below, only such
    multiples are tried from then on.
    """

    def __init__(self, peaks: _Peaks, gpu: CudaProfile, usable_bytes: int, size: int) -> None:
        self.peaks, self.gpu, self.usable_bytes, self.size = peaks, gpu, usable_bytes, size
        self.multiple_of = 1  # sizes to try

    def run(self) -> tuple[int, str]:
        """The largest size that fits, and what limits it."""
        interpolate = True
        while True:
            low, high, limit = self._bounds()
            estimated = self._interpolated(low, high) if interpolate else None
            size = self._untried(low, high, estimated or self._middle(low, high, limit))
            if size is None:
                return low, limit
            interpolate = not interpolate
            if self.peaks.peak(self.gpu, size) is None and self.multiple_of == 1:
                multiple = size // self.size * self.size
                if low < multiple < size and self.peaks.peak(self.gpu, multiple) is not None:
                    self.multiple_of = self.size

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
        high = min([*too_large, *failing], default=MAX_SIZE + 1)
        limit = "memory" if high in too_large else "model" if high in failing else "search"
        return low, high, limit

    def _interpolated(self, low: int, high: int) -> int | None:
        """Where the line through both bounds meets the limit; None if a bound was not measured."""
        at_low, at_high = self._measured().get(low), self._measured().get(high)
        if not at_low or not at_high or at_high <= at_low:
            return None
        return low + int((high - low) * (self.usable_bytes - at_low) / (at_high - at_low))

    def _middle(self, low: int, high: int, limit: str) -> int:
        """Half way between the bounds; far above the lower one while there is no upper one."""
        return (low + high) // 2 if limit != "search" else max(8 * low, 1)

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
