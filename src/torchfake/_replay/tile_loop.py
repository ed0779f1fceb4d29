"""The loop that computes a range of a fused group, tile by tile.

Input: tileable operations, and a range of their elements. Output: this range of the cells that are
needed: in their storages, or handed over block by block. Invariant: ranges of a group can be
computed in any order, by any number of threads at a time; cells that no other task needs exist as
tiles only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from torchfake._core.memory import flat_view
from torchfake._graph.operations import Cell
from torchfake._random.generator_pool import GeneratorPool
from torchfake._replay.execute import check_replayable, replay_error
from torchfake._replay.tiling import DRAW_ALIGNMENT, FlatView, TileableOp

TILE_ELEMENTS = 32 * 1024
"""Elements of a tile: it stays in a processor's cache, and is small enough that torch does not
start threads of its own (at::internal::GRAIN_SIZE)."""

DRAW_TILE_ELEMENTS = 4 * 1024 * 1024
"""Elements of a tile that a single draw computes. Ctrl-C takes effect after the tile."""

ELEMENTS_AT_ONCE = 2 * 1024 * 1024
"""Elements that exist at a time, in all threads together, of a cell that is handed over block by
block."""

BlockWriter = Callable[[int, torch.Tensor], None]
"""Is handed a block of consecutive elements of a cell: the index of the first, and their values."""


@dataclass
class TileBuffers:
    """One thread's memory for tiles and blocks of cells that do not exist as a whole."""

    _storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def get(self, index: int, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
        """The buffer with number `index`, as `num_elements` elements of `dtype`."""
        storage = self._storages.get(index)
        if storage is None or storage.nbytes() < num_elements * dtype.itemsize:
            storage = torch.UntypedStorage(num_elements * dtype.itemsize, device="cpu")
            self._storages[index] = storage
        return flat_view(storage, dtype)[:num_elements]


@dataclass
class BufferAssignment:
    """Where the cells of a fused group are in memory. Cells in neither dict exist as tiles only."""

    whole: dict[Cell, torch.UntypedStorage]
    block_writers: dict[Cell, BlockWriter]  # of cells that are handed over block by block
    block_elements: int

    @property
    def has_blocks(self) -> bool:
        return bool(self.block_writers)


def block_elements(num_threads: int) -> int:
    """The number of elements of a block, if each of `num_threads` threads has a block."""
    return max(2 * TILE_ELEMENTS, ELEMENTS_AT_ONCE // num_threads)


def aligned_stop(stop: int, length: int) -> int:
    """The end of a range near `stop` where draws can be split; `length` if that is near."""
    stop = stop // DRAW_ALIGNMENT * DRAW_ALIGNMENT
    return length if length - stop < 2 * DRAW_ALIGNMENT else stop


class TileLoop:
    """Computes ranges of a fused group in one thread."""

    def __init__(
        self,
        tileables: list[TileableOp],
        assignment: BufferAssignment,
        generators: GeneratorPool,
        buffers: TileBuffers,
    ) -> None:
        self._tileables = tileables
        self._assignment = assignment
        self._generators = generators
        self._buffers = buffers
        self._length = tileables[0].cell_length
        self._buffer_start = 0  # the element that buffers begin with
        self._flat_views: dict[FlatView, torch.Tensor] = {}
        cells = {view.cell for tileable in tileables for view in tileable.views}
        buffered = (cell for cell in cells if cell not in assignment.whole)
        self._buffer_indices = {cell: i for i, cell in enumerate(buffered)}

    def run(self, start: int, stop: int, is_stopped: Callable[[], bool]) -> None:
        """Compute the elements from `start` to `stop`, unless stopped meanwhile."""
        for tileable in self._tileables:
            check_replayable(tileable.op)
        assignment = self._assignment
        size = assignment.block_elements if assignment.has_blocks else stop - start
        for first, last in _split(start, stop, size, self._length):
            if is_stopped():
                return
            self._run_block(first, last, is_stopped)

    def _run_block(self, start: int, stop: int, is_stopped: Callable[[], bool]) -> None:
        has_blocks = self._assignment.has_blocks
        if has_blocks:
            self._buffer_start = start
        for first, last, active in self._subranges(start, stop):
            size = DRAW_TILE_ELEMENTS if self._is_single_draw(active) else TILE_ELEMENTS
            for tile_start, tile_stop in _split(first, last, size, self._length):
                if is_stopped():
                    return
                if not has_blocks:
                    self._buffer_start = tile_start
                for tileable in active:
                    self._run_op(tileable, tile_start, tile_stop)
        for cell, write_block in self._assignment.block_writers.items():
            write_block(start, self._computed(cell, start, stop))

    def _subranges(self, start: int, stop: int) -> Iterator[tuple[int, int, list[TileableOp]]]:
        """Parts of a range in each of which the same operations are active."""
        edges = {start, stop}
        for tileable in self._tileables:
            first = tileable.start // DRAW_ALIGNMENT * DRAW_ALIGNMENT
            last = -(-tileable.stop // DRAW_ALIGNMENT) * DRAW_ALIGNMENT
            for edge in (first, last):
                if start < edge < stop and self._length - edge >= 2 * DRAW_ALIGNMENT:
                    edges.add(edge)
        for first, last in itertools.pairwise(sorted(edges)):
            active = [t for t in self._tileables if t.start < last and t.stop > first]
            if active:
                yield first, last, active

    def _is_single_draw(self, active: list[TileableOp]) -> bool:
        """Whether there is only one draw to compute, into memory with room for a large tile."""
        if len(active) > 1 or active[0].draw is None:
            return False
        is_whole = all(view.cell in self._assignment.whole for view in active[0].views)
        return is_whole or self._assignment.has_blocks

    def _run_op(self, tileable: TileableOp, start: int, stop: int) -> None:
        start, stop = tileable.clip(start, stop)
        if start >= stop:
            return
        slices = [self._slice(view, start, stop) for view in tileable.views]
        try:
            if tileable.draw is None:
                tileable.kernel(slices, None)
                return
            num_words = (start - tileable.start) * tileable.words_per_element
            generator = self._generators.at(tileable.draw, num_words)
            tileable.kernel(slices, generator)
        except RecursionError:
            raise
        except Exception as error:
            raise replay_error(tileable.op, error) from error
        self._generators.advance_by(_words_drawn(tileable, start, stop))

    def _slice(self, view: FlatView, start: int, stop: int) -> torch.Tensor:
        """The elements from `start` to `stop` of a cell, in its storage or in a buffer."""
        assignment = self._assignment
        whole = assignment.whole.get(view.cell)
        if whole is None:
            size = assignment.block_elements if assignment.has_blocks else TILE_ELEMENTS
            index = self._buffer_indices[view.cell]
            buffer = self._buffers.get(index, size + 2 * DRAW_ALIGNMENT, view.dtype)
            assert stop - self._buffer_start <= len(buffer)
            return buffer[start - self._buffer_start : stop - self._buffer_start]
        if view not in self._flat_views:
            self._flat_views[view] = flat_view(whole, view.dtype)
        return self._flat_views[view][start:stop]

    def _computed(self, cell: Cell, start: int, stop: int) -> torch.Tensor:
        """The values of `cell` from `start` to `stop`, in the dtype of its first view."""
        views = (view for tileable in self._tileables for view in tileable.views)
        dtype = next(view.dtype for view in views if view.cell is cell)
        return self._slice(FlatView(cell, dtype), start, stop)


def _words_drawn(tileable: TileableOp, start: int, stop: int) -> int:
    assert tileable.draw is not None
    assert tileable.draw.num_words is not None
    if stop == tileable.stop:  # with the words of elements that are drawn again
        return tileable.draw.num_words - (start - tileable.start) * tileable.words_per_element
    return (stop - start) * tileable.words_per_element


def _split(start: int, stop: int, size: int, length: int) -> Iterator[tuple[int, int]]:
    """Ranges of about `size` elements, split where draws can be split."""
    while start < stop:
        end = stop if stop - start <= size else aligned_stop(start + size, length)
        end = min(end, stop)
        yield start, end
        start = end
