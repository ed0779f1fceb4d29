"""Which GPUs a step fits on, and how large a batch or sequence would.

Enters: an estimate, the profiles of GPUs. Leaves: a :class:`Fit` for each. Invariant: what is said
of a GPU was run on fakes of that GPU; nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchfake._cuda import CudaProfile, profile, profiles
from torchfake.errors import InputsError, TorchFakeError
from torchfake.inspect.memory import Estimate, run_step
from torchfake.inspect.resizing import BATCH, SEQ, resized, size_of
from torchfake.inspect.shown import Shown

RESERVED_BYTES = 1 << 30
"""What is left out of account by default: the CUDA context, the kernels' own scratch memory, and
what torch's caching allocator loses between its blocks. A round figure, not a measured one."""

MAX_SIZE = 1 << 24
"""Where the search for the largest size ends."""


@dataclass(frozen=True)
class Fit:
    """Whether a step fits on one GPU."""

    gpu: str  # the profile's name
    total_bytes: int  # of the GPU's memory
    reserved_bytes: int  # of it, not for tensors
    peak_bytes: int  # of the step, at the sizes it was estimated for
    vary: str | None  # "batch" or "seq"
    size: int | None  # that it was estimated for
    largest: int | None  # that fits; 0: not even 1
    limited_by: str | None  # "memory", "model" (it runs on no larger) or "search" (MAX_SIZE)

    @property
    def fits(self) -> bool:
        """Whether it fits at the sizes it was estimated for."""
        return self.headroom_bytes >= 0

    @property
    def headroom_bytes(self) -> int:
        """What is left at the peak; below 0: what is missing."""
        return self.total_bytes - self.reserved_bytes - self.peak_bytes

    def to_dict(self) -> dict[str, Any]:
        """All there is to say, ready for JSON."""
        return {**self.__dict__, "fits": self.fits, "headroom_bytes": self.headroom_bytes}


@dataclass(frozen=True, repr=False)
class Fits(Shown, Sequence[Fit]):
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

    The step is run anew for each kind of GPU, on fakes: kernels and workspaces differ. The largest
    size is found by running it at others, between one that fits and one that does not.

    Args:
        estimate: of :func:`estimate`, on any device.
        gpus: profiles or their names, see :func:`torchfake.profiles`; all of these if none is
            given.
        vary: ``"batch"``, ``"seq"``, or None for neither.
        reserved_bytes: of the GPU's memory, not for tensors.

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
    if vary not in (None, BATCH, SEQ):
        raise InputsError(f"vary={vary!r} is not 'batch', 'seq' or None")
    if vary == SEQ and estimate.step.decode is not None:
        raise InputsError("with decode= the lengths are its own: vary='batch', or None")
    named = {g.name if isinstance(g, CudaProfile) else g: profile(g) for g in gpus} or profiles()
    size = None if vary is None else size_of(estimate.subject, vary)
    runs = _Runs(estimate, vary)
    return Fits(
        estimate,
        tuple(_fit(name, found, runs, size, reserved_bytes) for name, found in named.items()),
    )


def _fit(name: str, gpu: CudaProfile, runs: _Runs, size: int | None, reserved_bytes: int) -> Fit:
    peak = runs.peak(gpu, size)
    if peak is None:
        raise InputsError("the step does not run on these inputs; check() says where")
    fitted = Fit(name, gpu.total_memory, reserved_bytes, peak, runs.vary, size, None, None)
    if size is None:
        return fitted
    largest, by = _largest(runs, gpu, gpu.total_memory - reserved_bytes)
    return replace(fitted, largest=largest, limited_by=by)


class _Runs:
    """Peaks by kind of GPU and size, each run once."""

    def __init__(self, estimate: Estimate, vary: str | None) -> None:
        self.vary = vary
        self._estimate = estimate
        self._peaks: dict[int, dict[int | None, int | None]] = {}

    def known(self, gpu: CudaProfile) -> dict[int | None, int | None]:
        """The peaks on such a GPU by size; None: it does not run. Kernels and workspaces depend on
        the compute capability alone, and on its minor version none does.
        """
        return self._peaks.setdefault(gpu.major, {})

    def peak(self, gpu: CudaProfile, size: int | None) -> int | None:
        """The peak, or None if the step does not run at that size."""
        known = self.known(gpu)
        if size not in known:
            known[size] = self._run(gpu, size)
        return known[size]

    def _run(self, gpu: CudaProfile, size: int | None) -> int | None:
        subject = self._estimate.subject
        device = subject.device
        if device is None or device.type != "cuda":
            device = torch.device("cuda", 0)
        subject = replace(subject, gpu=gpu, device=device)
        try:
            if size is not None and self.vary is not None:
                subject = resized(subject, self.vary, size)
            return run_step(subject, self._estimate.step).peak_bytes
        except TorchFakeError:
            raise
        except Exception:
            return None


def _largest(runs: _Runs, gpu: CudaProfile, usable: int) -> tuple[int, str]:
    """The largest size that fits, and what forbids the next.

    Bisection, by turns with a guess: where the line through the two bounds meets the limit. Memory
    grows evenly with the batch from where activations outweigh the optimizer.
    """
    guesses = True
    while True:
        known = {n: peak for n, peak in runs.known(gpu).items() if n is not None}
        fits = {0: 0} | {n: p for n, p in known.items() if p is not None and p <= usable}
        over = {n: p for n, p in known.items() if n not in fits}
        low, high = max(fits), min(over, default=MAX_SIZE + 1)
        if low + 1 >= high:
            by = "search" if high not in over else "memory" if over[high] else "model"
            return low, by
        tried = _guess(low, fits[low], high, over.get(high), usable) if guesses else None
        runs.peak(gpu, tried or _middle(low, high, known))
        guesses = not guesses


def _guess(low: int, at_low: int, high: int, at_high: int | None, usable: int) -> int | None:
    """Where a line meets the limit; nothing where there is no line yet, or no room for a guess."""
    if not at_low or not at_high or at_high <= at_low:
        return None
    meets = low + int((high - low) * (usable - at_low) / (at_high - at_low))
    return min(max(meets, low + 1), high - 1)


def _middle(low: int, high: int, known: Mapping[int, Any]) -> int:
    """Half way; while nothing is too large as yet, far beyond."""
    return (low + high) // 2 if high in known else min(max(low, 1) * 8 if low else 1, high - 1)
