"""Memory and time of a layout at full depth, extrapolated from runs with a few layers.

Input: the layers of a model, and measurements with a few numbers of layers. Output: :class:`Taken`.
Invariant: nothing is extrapolated over layers that differ, or if memory does not grow linearly in
the number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from torchfake.distributed.parallelize.blocks import kind_of_block, repeated_blocks
from torchfake.distributed.search.measurements import Measured

DEPTHS = (3, 4, 5)
"""Numbers of layers to run, the last only to find out whether memory grows linearly. FSDP2 gathers
one layer ahead: fewer have no typical middle layer."""

MARGIN = 0.15
"""Reserved bytes that are extrapolated differ from those of a run with all layers by at most this
share: by 14 % in the worst of the layouts that docs/performance.md lists. The peak of allocated
bytes and the time of a step have no such error, but how the allocator's blocks fit together does
not grow linearly in the layers.
"""

_TOLERANCE = 0.01


class Taken(NamedTuple):
    """The memory and time of each rank of a layout."""

    peak_bytes: int
    reserved_bytes: int
    step_seconds: float | None
    is_extrapolated: bool = False

    @property
    def reserved_range(self) -> tuple[int, int]:
        """The least and the most bytes that a run with all layers may reserve."""
        if not self.is_extrapolated:
            return self.reserved_bytes, self.reserved_bytes
        least, most = (round(self.reserved_bytes * (1 + s * MARGIN)) for s in (-1, 1))
        return max(least, self.peak_bytes), most


class Layers(NamedTuple):
    """The repeated blocks of a model."""

    names: tuple[str, ...]
    kinds: tuple[Any, ...]  # of each block: equal if blocks differ in values and position only

    @classmethod
    def of(cls, module: nn.Module) -> Layers:
        """Find the repeated blocks of a model."""
        names = [name for group in repeated_blocks(module) for name in group.names]
        return cls(tuple(names), tuple(kind_of_block(module.get_submodule(name)) for name in names))


def depths_of(layers: Layers, depth: int | None) -> tuple[int, ...]:
    """The numbers of layers with which a model of `depth` layers is run, ascending; none if the
    model is run whole, because layers after the first few differ.
    """
    if depth is None or not layers.kinds:
        return ()
    unlike = 0
    if len(layers.kinds) == depth:
        unlike = depth - 1
        while unlike and layers.kinds[unlike - 1] == layers.kinds[-1]:
            unlike -= 1
    elif len(set(layers.kinds)) > 2:  # an encoder and a decoder, for instance, have two kinds
        return ()
    depths = tuple(unlike + more for more in DEPTHS)
    return depths if depths[-1] < depth else ()


def taken(found: Sequence[Measured], depths: Sequence[int], depth: int) -> Taken | None:
    """The memory and time with `depth` layers; None if the peak does not grow linearly.

    Args:
        found: measurements for each of `depths`: three, or two if the layout is known as linear.
        depths: numbers of layers, ascending by one.
        depth: the number of layers of the model.
    """
    more = depth - depths[-1]
    peak = _extrapolated([row.peak_bytes for row in found], more)
    seconds = _extrapolated([row.step_seconds for row in found], more)
    if peak is None:
        return None
    unused = max(row.reserved_bytes - row.peak_bytes for row in found)
    return Taken(round(peak), round(peak) + unused, seconds, True)


def _extrapolated(values: Sequence[float | None], more: int) -> float | None:
    """The value with `more` layers than the last; None if values do not grow linearly."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    growths = [after - before for before, after in pairwise(known)]
    growth, last = growths[-1], known[-1]
    if abs(growth - growths[0]) > _TOLERANCE * max(abs(growth), abs(last) * _TOLERANCE):
        return None
    return last + growth * more
