"""Blocks of one layout that are checkpointed in different ways, to recompute as little as possible.

Input: the memory and time of each block for each way to checkpoint it. Output: a way for each
block, and the resulting memory and time. Invariant: the kept bytes are summed over the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torchfake.distributed.search.extrapolation import Taken
from torchfake.distributed.search.knapsack import Option, least_seconds
from torchfake.distributed.search.measurements import Measured, OfBlock


class Mix(NamedTuple):
    """A way to checkpoint each block, and the resulting memory and time."""

    kinds: tuple[str, ...]
    taken: Taken


class Ways(NamedTuple):
    """The blocks of one layout, with each way to checkpoint them."""

    least: str  # the way that keeps least
    taken: Taken  # the memory and time at full depth, if all blocks use that way
    blocks: Mapping[str, Sequence[OfBlock]]  # by way: each block at full depth
    exposed: float  # increase of the step time per second of recomputation

    @property
    def most_bytes(self) -> int:
        """The estimated reserved bytes if each block keeps as much as possible."""
        most: list[int] = [
            max(block.kept_bytes for block in ways)
            for ways in zip(*self.blocks.values(), strict=True)
        ]
        least: list[int] = [block.kept_bytes for block in self.blocks[self.least]]
        return self.taken.reserved_bytes + sum(most) - sum(least)

    def mixed(self, budget: int) -> Mix | None:
        """The mix that recomputes least among those estimated to reserve at most `budget` bytes;
        None if there is none.
        """
        ways = list(self.blocks)
        options = [
            [self._option(way, position) for way in ways]
            for position in range(len(self.blocks[self.least]))
        ]
        chosen = least_seconds(options, budget - self.taken.reserved_bytes)
        if chosen is None:
            return None
        taken = [block[option] for block, option in zip(options, chosen, strict=True)]
        more = sum(option.num_bytes for option in taken)
        spared = sum(-option.seconds for option in taken) * self.exposed
        seconds = self.taken.step_seconds
        return Mix(
            tuple(ways[option] for option in chosen),
            Taken(
                self.taken.peak_bytes + more,
                self.taken.reserved_bytes + more,
                None if seconds is None else seconds - spared,
                True,
            ),
        )

    def _option(self, way: str, position: int) -> Option:
        """The bytes and seconds of a block, relative to the way that keeps least."""
        found, least = self.blocks[way][position], self.blocks[self.least][position]
        return Option(
            found.kept_bytes - least.kept_bytes, found.repeated_seconds - least.repeated_seconds
        )


def exposed_share(found: Mapping[str, Measured]) -> float:
    """The increase of the step time per second of recomputation: less than one if recomputation
    overlaps with waiting for messages.

    Args:
        found: measurements of the same layers, by way.
    """
    timed = [
        (sum(block.repeated_seconds for block in row.blocks), row.step_seconds)
        for row in found.values()
        if row.step_seconds is not None
    ]
    if len(timed) < 2:
        return 1.0
    (least, fast), (most, slow) = min(timed), max(timed)
    return max(0.0, slow - fast) / (most - least) if most > least else 1.0


def at_full_depth(
    blocks: Sequence[OfBlock], kinds: Sequence[object], of_model: Sequence[object]
) -> list[OfBlock]:
    """The memory and recomputation of each block of the model, taken from the middle one of the
    blocks of equal kind that were run, since the first and last blocks differ.
    """
    by_kind: dict[object, list[OfBlock]] = {}
    for kind, block in zip(kinds, blocks, strict=True):
        by_kind.setdefault(kind, []).append(block)
    middle = {kind: alike[len(alike) // 2] for kind, alike in by_kind.items()}
    return [middle[kind] for kind in of_model]
