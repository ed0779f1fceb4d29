"""Steps on the same elements, done one after the other on a piece at a time.

Enters: steps, and a stretch of their elements. Leaves: that stretch of the cells that somebody
wants. Invariant: stretches can be done in any order, at the same time, in any number of threads;
cells that nobody else wants exist as pieces only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from torchfake._execute import check_can_be_done, failed
from torchfake._graph import Cell
from torchfake._memory import flat_view
from torchfake._pieces import ALIGNED, Step, View
from torchfake._positions import Generators

PIECE = 32 * 1024
"""Elements that steps are done on at once: they stay in a processor's cache, and are few enough
that torch does not start threads of its own (at::internal::GRAIN_SIZE)."""

STRETCH = 4 * 1024 * 1024
"""Elements that a draw alone fills at once: what Ctrl-C waits for."""

BLOCKS = 2 * 1024 * 1024
"""Elements of a cell that are there at once in all threads, where it is handed over block by
block."""

Sink = Callable[[int, torch.Tensor], None]
"""Takes the elements from a place on."""


@dataclass
class Buffers:
    """Memory of one thread, for the pieces of cells that are not there as a whole."""

    _storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def get(self, place: int, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
        storage = self._storages.get(place)
        if storage is None or storage.nbytes() < num_elements * dtype.itemsize:
            storage = torch.UntypedStorage(num_elements * dtype.itemsize, device="cpu")
            self._storages[place] = storage
        return flat_view(storage, dtype)[:num_elements]


@dataclass
class Layout:
    """Where the cells of a chain are."""

    whole: dict[Cell, torch.UntypedStorage]
    sinks: dict[Cell, Sink]  # handed over block by block; in neither: nobody wants it
    block: int  # elements of one

    @property
    def is_by_blocks(self) -> bool:
        return bool(self.sinks)


def block_of(num_threads: int) -> int:
    """The elements of a block, for so many threads."""
    return max(2 * PIECE, BLOCKS // num_threads)


def aligned_stop(stop: int, length: int) -> int:
    """`stop` or a little before or behind it, where draws can be cut."""
    stop = stop // ALIGNED * ALIGNED
    return length if length - stop < 2 * ALIGNED else stop


class Section:
    """A stretch of a chain, being done by one thread."""

    def __init__(
        self, steps: list[Step], layout: Layout, generators: Generators, buffers: Buffers
    ) -> None:
        self._steps = steps
        self._layout = layout
        self._generators = generators
        self._buffers = buffers
        self._length = steps[0].length
        self._base = 0  # the element that buffers begin with
        self._views: dict[View, torch.Tensor] = {}
        cells = {view.cell for step in steps for view in step.views}
        self._places = {cell: i for i, cell in enumerate(c for c in cells if c not in layout.whole)}

    def run(self, start: int, stop: int, is_stopped: Callable[[], bool]) -> None:
        """Do the elements from `start` to `stop`, unless stopped meanwhile."""
        for step in self._steps:
            check_can_be_done(step.op)
        size = self._layout.block if self._layout.is_by_blocks else stop - start
        for first, last in _cut(start, stop, size, self._length):
            if is_stopped():
                return
            self._run_block(first, last, is_stopped)

    def _run_block(self, start: int, stop: int, is_stopped: Callable[[], bool]) -> None:
        by_blocks = self._layout.is_by_blocks
        if by_blocks:
            self._base = start
        for first, last, active in self._stretches(start, stop):
            size = STRETCH if self._is_one_draw(active) else PIECE
            for begin, end in _cut(first, last, size, self._length):
                if is_stopped():
                    return
                if not by_blocks:
                    self._base = begin
                for step in active:
                    self._do(step, begin, end)
        for cell, sink in self._layout.sinks.items():
            sink(start, self._written(cell, start, stop))

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[int, int, list[Step]]]:
        """Parts of a stretch throughout which the same steps have something to do."""
        cuts = {start, stop}
        for step in self._steps:
            for cut in (step.start // ALIGNED * ALIGNED, -(-step.stop // ALIGNED) * ALIGNED):
                if start < cut < stop and self._length - cut >= 2 * ALIGNED:
                    cuts.add(cut)
        edges = sorted(cuts)
        for first, last in itertools.pairwise(edges):
            active = [s for s in self._steps if s.start < last and s.stop > first]
            if active:
                yield first, last, active

    def _is_one_draw(self, active: list[Step]) -> bool:
        """Whether there is nothing else to be done, in memory that has room for it."""
        if len(active) > 1 or active[0].draw is None:
            return False
        has_room = all(view.cell in self._layout.whole for view in active[0].views)
        return has_room or self._layout.is_by_blocks

    def _do(self, step: Step, start: int, stop: int) -> None:
        start, stop = step.within(start, stop)
        if start >= stop:
            return
        slices = [self._slice(view, start, stop) for view in step.views]
        try:
            if step.draw is None:
                step.run(slices, None)
                return
            generator = self._generators.at(step.draw, (start - step.start) * step.words)
            step.run(slices, generator)
        except Exception as error:
            raise failed(step.op, error) from error
        self._generators.drawn(self._words(step, start, stop))

    def _words(self, step: Step, start: int, stop: int) -> int:
        assert step.draw is not None
        assert step.draw.taken is not None
        if stop == step.stop:  # what is drawn again at the end, too
            return step.draw.taken - (start - step.start) * step.words
        return (stop - start) * step.words

    def _slice(self, view: View, start: int, stop: int) -> torch.Tensor:
        whole = self._layout.whole.get(view.cell)
        if whole is None:
            size = self._layout.block if self._layout.is_by_blocks else PIECE
            buffer = self._buffers.get(self._places[view.cell], size + 2 * ALIGNED, view.dtype)
            assert stop - self._base <= len(buffer)
            return buffer[start - self._base : stop - self._base]
        if view not in self._views:
            self._views[view] = flat_view(whole, view.dtype)
        return self._views[view][start:stop]

    def _written(self, cell: Cell, start: int, stop: int) -> torch.Tensor:
        dtype = next(v.dtype for step in self._steps for v in step.views if v.cell is cell)
        return self._slice(View(cell, dtype), start, stop)


def _cut(start: int, stop: int, size: int, length: int) -> Iterator[tuple[int, int]]:
    """Pieces of about `size`, cut where draws can be."""
    while start < stop:
        end = stop if stop - start <= size else aligned_stop(start + size, length)
        end = min(end, stop)
        yield start, end
        start = end
