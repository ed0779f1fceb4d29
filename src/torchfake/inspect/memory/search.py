"""The search for the largest size at which a step fits on a GPU.

Input: the peaks of a step, a GPU. Output: the largest size whose peak fits. Invariant: that size
was run. The next was run too, or else the allocator was replayed with the bytes of its storages on
lines through those of three sizes that were run, the answer among them. All other predictions only
choose the sizes to run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import combinations

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.memory.limited import Line
from torchfake.inspect.memory.peaks import Peaks

MAX_SIZE = 1 << 24
"""The largest size that the search tries."""

_NEAREST = 4
"""The number of sizes among which two with the same storages are looked for."""

_MOST_WRONG = 3
"""The number of wrong predictions after which no more are made."""

_FAR = 64
"""How many times as large as a size that ran a predicted size may be."""

_NEAR = 32
"""Two sizes n and m are near to each other if they differ by at most n / _NEAR."""


class Search:
    """The search for the largest size that fits.

    Allocated bytes grow almost linearly with the size. If the step has the same storages at two
    sizes, their bytes at other sizes are predicted, and replayed by the allocator. The largest size
    that is predicted to fit is run; so is the next, unless the prediction was right to the byte.
    Otherwise the search begins where the line through the known peaks reaches the limit
    (interpolation search). The caching allocator reserves somewhat more than is allocated, so from
    there the search goes on in growing steps until they enclose the answer (galloping), and then
    bisects. If a model does not run at a size, but at a multiple of its given size next to it, only
    such multiples are tried from then on.
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
        self.highest = highest  # the largest size to try
        self.multiple_of = multiple_of  # only multiples of this size are tried
        self._predicted: int | None = None  # the largest size that fits
        self._by: Line | None = None  # what predicted it before it was run
        self._num_wrong = 0  # predictions that a run has contradicted

    def run(self) -> tuple[int, str]:
        """The largest size that fits, and what limits it."""
        if self.peaks.least_bytes(self.gpu) > self.usable_bytes:
            return 0, "memory"
        proposed = self._proposed()
        while True:
            low, high, limit = self._bounds()
            if self._was_right(low):
                return low, "memory"
            size = self._untried(low, high, next(proposed))
            if size is None:
                return low, limit
            if self._peak(size) is None and self.multiple_of == 1 and self._runs_near(size, low):
                self.multiple_of = self.size

    def _was_right(self, low: int) -> bool:
        """Whether the largest size that is known to fit was predicted, with the bytes that its
        storages have. The prediction that the next size does not fit is then as good as a run.
        """
        if self._by is None or low != self._predicted:
            return False
        ran = self.peaks.estimates(self.peaks.measured(self.gpu)[low])
        return self._by.is_through(low, ran)

    def _runs_near(self, size: int, low: int) -> bool:
        """Whether the model runs at a multiple of its given size near a size at which it does not:
        at the next smaller one, or if that is known to fit, at the next larger one.
        """
        multiple = size // self.size * self.size
        if multiple <= low:
            multiple += self.size
        is_near = multiple < size or low > 0
        return is_near and multiple <= self.highest and self._peak(multiple) is not None

    def _proposed(self) -> Iterator[int]:
        """Sizes to try, each chosen by the peaks measured so far."""
        enclosing = self._enclosing()
        while True:
            size = self._next_to_prediction()
            yield next(enclosing) if size is None else size

    def _next_to_prediction(self) -> int | None:
        """The largest size that is predicted to fit, then the next; None if no prediction can be
        made, or if too many have turned out to be wrong.
        """
        low, high, _ = self._bounds()
        known = self.peaks.measured(self.gpu)
        failed = any(found is None for n, found in known.items() if n is not None and n > low)
        if high - low <= self.multiple_of or failed or self._num_wrong > _MOST_WRONG:
            return None
        if self._predicted is None:
            line = self._line()
            if line is None:
                return None
            self._predicted = self._largest_on(line, low, high)
            self._by = line if low < self._predicted < high - self.multiple_of else None
        if self._predicted > _FAR * low and high > self.highest:
            self._predicted = None  # the model may not run there: try a nearer size first
            return None
        if not low <= self._predicted < high:  # it is made again from the nearer sizes
            self._predicted, self._num_wrong = None, self._num_wrong + 1
            return self._next_to_prediction()
        return self._predicted if self._predicted > low else low + self.multiple_of

    def _line(self) -> Line | None:
        """Two sizes at which the step has the same storages, the nearest to the limit."""
        known = self.peaks.measured(self.gpu)
        ran = {n: self.peaks.estimates(found) for n, found in known.items() if n and found}
        nearest = sorted(
            ran, key=lambda n: abs(self.peaks.allocated(self.gpu, n) - self.usable_bytes)
        )
        nearest = nearest[:_NEAREST]
        lines = (Line(one, ran[one], two, ran[two]) for one, two in combinations(nearest, 2))
        return next((line for line in lines if line.is_straight), None)

    def _largest_on(self, line: Line, low: int, high: int) -> int:
        """The largest size between the bounds that is predicted to fit, by the steps in which sizes
        are run without a prediction.
        """
        unit = self.multiple_of
        first, last, step = low // unit, -(-high // unit), 1
        number, turned = min(max((self._met() or high) // unit, first + 1), last - 1), set()
        while last - first > 1:
            fits = line.fits(number * unit, self.gpu, self.usable_bytes)
            first, last = (number, last) if fits else (first, number)
            turned.add(fits)
            number += step if fits else -step
            step = max(2 * step, number // _NEAR)
            if len(turned) > 1 or not first < number < last:
                number = (first + last) // 2
        return first * unit

    def _enclosing(self) -> Iterator[int]:
        """Sizes to try that enclose the limit, without a prediction."""
        met = yield from self._along_the_line()
        yield from self._away_from(met)
        while True:
            yield self._middle()

    def _along_the_line(self) -> Generator[int, None, int]:
        """Yield the sizes at which the line meets the limit, until two are near; return that."""
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
        """Sizes in growing steps from `size`, up if it fits, else down, to beyond the limit."""
        step, sign = 1, 1 if size <= self._bounds()[0] else -1
        while True:
            size += sign * step
            step = max(2 * step, size // _NEAR)
            yield size
            low, high, _ = self._bounds()
            if size != (low if sign > 0 else high):
                return

    def _measured(self) -> dict[int, int | None]:
        """The peaks of sizes that may be the answer: a larger one may have been asked for."""
        sizes = [n for n in self.peaks.measured(self.gpu) if n is not None]
        return {n: self._peak(n) for n in sizes if n <= self.highest}

    def _peak(self, size: int) -> int | None:
        return self.peaks.peak(self.gpu, size, only_if_fits=True)

    def _bounds(self) -> tuple[int, int, str]:
        """The largest size known to fit, the smallest known not to fit, and the reason why not."""
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
        """The size at which the line through the two peaks nearest to the limit meets the limit;
        None if fewer than two different peaks are known.
        """
        sizes = [n for n, peak in self._measured().items() if peak]
        peaks = [(n, self.peaks.allocated(self.gpu, n)) for n in sizes]
        (n, at_n), *others = sorted(peaks, key=lambda each: abs(each[1] - self.usable_bytes))
        for m, at_m in others:
            if (at_n - at_m) * (n - m) > 0:  # the line rises
                return n + int((self.usable_bytes - at_n) * (n - m) / (at_n - at_m))
        return None

    def _farthest(self) -> int:
        """The upper bound; as long as none is known, 8 times the largest size that fits."""
        low, high, _ = self._bounds()
        return high if high <= self.highest else min(8 * low, self.highest)

    def _middle(self) -> int:
        """The size half way between the bounds, or :meth:`_farthest` if no upper bound is known. If
        no size is known to fit, size 1 comes first: a step that does not fit at 1 fits at no size.
        """
        low, high, _ = self._bounds()
        if low == 0 and 1 not in self.peaks.measured(self.gpu):
            return 1
        return (low + high) // 2 if high <= self.highest else self._farthest()

    def _untried(self, low: int, high: int, proposed: int) -> int | None:
        """The size nearest to `proposed` that is between the bounds and was not tried; or None."""
        measured, unit = self._measured(), self.multiple_of
        first, last = low // unit + 1, (high - 1) // unit
        near = min(max(proposed // unit, first), last)
        for distance in range(max(near - first, last - near) + 1):
            for number in (near + distance, near - distance):
                if first <= number <= last and number * unit not in measured:
                    return number * unit
        return None
