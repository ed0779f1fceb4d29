"""Small models, materialized the way large ones are: all sizes of the replay are made tiny.

``pytest --pieces`` runs any test this way; tests of the replay choose sizes that are smaller still.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchfake._random import generator_pool
from torchfake._replay import demand_analysis, replay, slicing, tile_loop, work_queue


@contextmanager
def tiny_tiles(tile_elements: int = 32, num_scratch_bytes: int = 1000) -> Iterator[None]:
    """Context: every replay is scheduled, split into tiles of this size, and run by threads."""
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch, tile_elements, num_scratch_bytes)
        yield


def make_tiny(patch: pytest.MonkeyPatch, tile_elements: int, num_scratch_bytes: int) -> None:
    patch.setattr(replay, "MAX_SEQUENTIAL_BYTES", -1)
    patch.setattr(demand_analysis, "MIN_SLICED_BYTES", -1)
    patch.setattr(slicing, "COPY_BLOCK_ELEMENTS", tile_elements * 4)
    patch.setattr(work_queue, "MIN_RANGE_ELEMENTS", tile_elements * 3 // 2)
    patch.setattr(work_queue, "MAX_RANGE_ELEMENTS", tile_elements * 5)
    patch.setattr(work_queue, "MAX_SCRATCH_BYTES", num_scratch_bytes)
    patch.setattr(tile_loop, "TILE_ELEMENTS", tile_elements)
    patch.setattr(tile_loop, "DRAW_TILE_ELEMENTS", tile_elements * 2)
    patch.setattr(tile_loop, "ELEMENTS_AT_ONCE", tile_elements * 4)
    patch.setattr(generator_pool, "MAX_SKIPPED_WORDS", tile_elements * 3)
