"""The engine of large models on small ones: all its sizes made small, and no short cuts.

``pytest --pieces`` runs any suite this way; tests of the engine do it themselves, with sizes that
are smaller still.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchfake import _chains, _narrow, _positions, _replay, _wanted, _workers


@contextmanager
def tiny_pieces(piece: int = 32, num_scratch_bytes: int = 1000) -> Iterator[None]:
    """Context: everything is planned, cut to pieces of so many elements and run on threads."""
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch, piece, num_scratch_bytes)
        yield


def make_tiny(patch: pytest.MonkeyPatch, piece: int, num_scratch_bytes: int) -> None:
    patch.setattr(_replay, "SMALL_BYTES", -1)
    patch.setattr(_wanted, "MIN_BYTES", -1)
    patch.setattr(_narrow, "BLOCK", piece * 4)
    patch.setattr(_workers, "MIN_PORTION", piece * 3 // 2)
    patch.setattr(_workers, "MAX_PORTION", piece * 5)
    patch.setattr(_workers, "MAX_SCRATCH_BYTES", num_scratch_bytes)
    patch.setattr(_chains, "PIECE", piece)
    patch.setattr(_chains, "STRETCH", piece * 2)
    patch.setattr(_chains, "BLOCKS", piece * 4)
    patch.setattr(_positions, "MAX_SKIPPED_WORDS", piece * 3)
