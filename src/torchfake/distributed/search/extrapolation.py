"""What a layout takes at full depth, from runs of a few layers.

Input: the layers of a model, and a function that runs it with so many. Output: :class:`Taken`.
Invariant: nothing is extrapolated over layers that are unlike, or that did not grow by the same for
each of the layers that were added.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from torchfake.distributed.parallelize.blocks import repeated_blocks
from torchfake.distributed.search.measurements import Measured

DEPTHS = (3, 4, 5)
"""Layers that are run: FSDP2 gathers one layer ahead, so with fewer not all is as between many."""

_TOLERANCE = 0.01
_PLACE = ("layer_idx", "layer_id", "layer_index")
"""What layers of a model of transformers keep of their place: the only thing that may differ."""


class Taken(NamedTuple):
    """What each rank of a layout takes."""

    peak_bytes: int
    reserved_bytes: int
    step_seconds: float | None
    is_extrapolated: bool = False


class Layers(NamedTuple):
    """The repeated blocks of a model."""

    names: tuple[str, ...]
    kinds: tuple[Any, ...]  # of each: equal where blocks differ in values and their place alone

    @classmethod
    def of(cls, module: nn.Module) -> Layers:
        """The blocks of a model."""
        names = [name for group in repeated_blocks(module) for name in group.names]
        return cls(tuple(names), tuple(_kind(module.get_submodule(name)) for name in names))


def depths_of(layers: Layers, depth: int | None) -> tuple[int, ...]:
    """The numbers of layers with which a model of `depth` is run, ascending; none if it is run
    whole: all after the first few have to be alike.
    """
    if depth is None or not layers.kinds:
        return ()
    unlike = 0
    if len(layers.kinds) == depth:
        unlike = depth - 1
        while unlike and layers.kinds[unlike - 1] == layers.kinds[-1]:
            unlike -= 1
    elif len(set(layers.kinds)) > 2:  # such as an encoder and a decoder, each of layers alike
        return ()
    depths = tuple(unlike + more for more in DEPTHS)
    return depths if depths[-1] < depth else ()


def taken(found: Sequence[Measured], depths: Sequence[int], depth: int) -> Taken | None:
    """What `depth` layers take; None if it did not grow in proportion.

    Args:
        found: with each of the `depths`: three, or two of a layout that was seen to be linear.
        depths: ascending by one.
        depth: layers of the model.
    """
    more = depth - depths[-1]
    peak = _extrapolated([row.peak_bytes for row in found], more)
    seconds = _extrapolated([row.step_seconds for row in found], more)
    if peak is None:
        return None
    unused = max(row.reserved_bytes - row.peak_bytes for row in found)
    return Taken(round(peak), round(peak) + unused, seconds, True)


def _extrapolated(values: Sequence[float | None], more: int) -> float | None:
    """The value `more` layers on; None if it does not grow in proportion."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    growths = [after - before for before, after in pairwise(known)]
    growth, last = growths[-1], known[-1]
    if abs(growth - growths[0]) > _TOLERANCE * max(abs(growth), abs(last) * _TOLERANCE):
        return None
    return last + growth * more


def _kind(block: nn.Module) -> Any:
    """What a block is made of: classes, plain attributes, shapes."""
    return tuple(
        (
            name,
            type(part).__name__,
            tuple(
                (key, value)
                for key, value in sorted(vars(part).items())
                if isinstance(value, (bool, int, float, str)) and key not in _PLACE
            ),
            tuple(
                (key, tuple(tensor.shape), tensor.dtype)
                for key, tensor in part.named_parameters(recurse=False)
            ),
        )
        for name, part in block.named_modules()
    )
