"""Which GPUs a step fits on, and how large a batch or sequence would.

Enters: an estimate, the profiles of GPUs. Leaves: a :class:`Fit` for each. Invariant: what is said
of a GPU was run on fakes of that GPU; nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchfake._cuda import CudaProfile, profile, profiles
from torchfake.errors import InputsError, TorchFakeError
from torchfake.inspect.memory import Estimate, run_step
from torchfake.inspect.overrides import one_line
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
    largest: int | None  # that fits; 0: none does
    limited_by: str | None  # "memory", "model" (it does not run beyond) or "search" (MAX_SIZE)

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
    if not isinstance(estimate, Estimate):
        raise TypeError(f"fit takes what estimate gives, not a {type(estimate).__name__}")
    if not isinstance(reserved_bytes, int):
        raise InputsError(f"reserved_bytes={reserved_bytes!r} is not a number of bytes")
    if vary not in (None, BATCH, SEQ):
        raise InputsError(f"vary={vary!r} is not 'batch', 'seq' or None")
    if vary == SEQ and estimate.step.decode is not None:
        raise InputsError("with decode= the lengths are its own: vary='batch', or None")
    if len(estimate.subject.cuda_devices()) > 1:
        raise InputsError("the step runs on several GPUs; fit says of one whether all of it fits")
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
        raise InputsError(f"the step does not run on {name}: {one_line(runs.failure)}")
    fitted = Fit(name, gpu.total_memory, reserved_bytes, peak, runs.vary, size, None, None)
    if size is None:
        return fitted
    largest, by = _Search(runs, gpu, gpu.total_memory - reserved_bytes, size).run()
    return replace(fitted, largest=largest, limited_by=by)


class _Runs:
    """Peaks by kind of GPU and size, each run once."""

    def __init__(self, estimate: Estimate, vary: str | None) -> None:
        self.vary = vary
        self.failure: Exception = RuntimeError("it was not run")  # the last
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
        except Exception as error:
            self.failure = error
            return None


class _Search:
    """For the largest size that fits.

    Bisection, by turns with a guess: where the line through the two bounds meets the limit. Memory
    grows evenly with the batch from where activations outweigh the optimizer. A model that does not
    run at a size, but does at a multiple of the one it was given near it, runs at such multiples;
    then only they are tried.
    """

    def __init__(self, runs: _Runs, gpu: CudaProfile, usable: int, size: int) -> None:
        self.runs, self.gpu, self.usable, self.size = runs, gpu, usable, size
        self.grain = 1

    def run(self) -> tuple[int, str]:
        """The largest size that fits, and what forbids the next."""
        guesses = True
        while True:
            low, high, by = self._bounds()
            guess = self._guess(low, high) if guesses else None
            tried = self._untried(low, high, guess or self._middle(low, high, by))
            if tried is None:
                return low, by
            guesses = not guesses
            if self.runs.peak(self.gpu, tried) is None and self.grain == 1:
                multiple = tried // self.size * self.size
                if low < multiple < tried and self.runs.peak(self.gpu, multiple) is not None:
                    self.grain = self.size

    def _known(self) -> dict[int, int | None]:
        return {n: peak for n, peak in self.runs.known(self.gpu).items() if n is not None}

    def _bounds(self) -> tuple[int, int, str]:
        """The largest known to fit, the smallest known not to, and why not."""
        known = self._known()
        ran = {n: peak for n, peak in known.items() if peak is not None}
        low = max((n for n, peak in ran.items() if peak <= self.usable), default=0)
        over = [n for n, peak in ran.items() if peak > self.usable and n > low]
        fails = [n for n in known if n > max(ran) and n not in ran and n % self.grain == 0]
        high = min([*over, *fails], default=MAX_SIZE + 1)
        return low, high, "memory" if high in over else "model" if high in fails else "search"

    def _guess(self, low: int, high: int) -> int | None:
        """Where a line meets the limit; nothing where there is no line yet."""
        at_low, at_high = self._known().get(low), self._known().get(high)
        if not at_low or not at_high or at_high <= at_low:
            return None
        return low + int((high - low) * (self.usable - at_low) / (at_high - at_low))

    def _middle(self, low: int, high: int, by: str) -> int:
        """Half way; while nothing is too large as yet, far beyond."""
        return (low + high) // 2 if by != "search" else max(8 * low, 1)

    def _untried(self, low: int, high: int, wanted: int) -> int | None:
        """The size nearest to the wanted one that lies between and was not tried."""
        known, grain = self._known(), self.grain
        first, last = low // grain + 1, (high - 1) // grain
        near = min(max(wanted // grain, first), last)
        for step in range(max(near - first, last - near) + 1):
            for number in (near + step, near - step):
                if first <= number <= last and number * grain not in known:
                    return number * grain
        return None
