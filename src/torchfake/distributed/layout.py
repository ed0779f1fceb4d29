"""A mesh of ranks, as plain numbers.

Enters: the sizes and names of axes. Leaves: who is where, and which axes a group of ranks lies
along. Invariant: ranks count along the last axis first, as ``init_device_mesh`` has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from torchfake.errors import InputsError

DEFAULT_AXES = {1: ("dp",), 2: ("dp", "tp"), 3: ("pp", "dp", "tp")}
"""Names of the axes of a mesh that was given none."""

MAX_RANKS = 1 << 17
"""A mesh is a tensor of ranks, whose values a fake keeps up to 1 MiB."""


@dataclass(frozen=True)
class Layout:
    """The axes of a mesh."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]

    @property
    def num_ranks(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def coordinates(self) -> np.ndarray[Any, Any]:
        """Where each rank is, int64 [ranks, axes]."""
        return np.stack(np.unravel_index(np.arange(self.num_ranks), self.shape), axis=1)

    def text_of(self, rank: int) -> str:
        """Where a rank is, as people say it: ``dp 3, tp 0``."""
        place = self.coordinates[rank].tolist()
        return ", ".join(f"{axis} {i}" for axis, i in zip(self.axes, place, strict=True))

    def axis_along(self, ranks: Sequence[int]) -> str:
        """The axis that a group of ranks lies along; of several, their names with ``x`` between."""
        places = self.coordinates[list(ranks)]
        moving = [i for i in range(len(self.axes)) if len(set(places[:, i].tolist())) > 1]
        if math.prod(self.shape[i] for i in moving) != len(ranks):
            return "part of " + " x ".join(self.axes[i] for i in moving)
        return " x ".join(self.axes[i] for i in moving)

    def places_in(self, mesh_ranks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Where each rank is in its own copy of a part of the mesh, int64 [ranks, axes of that].

        Args:
            mesh_ranks: the ranks in one copy, in its shape. The others are the same along the axes
                that do not move in it.
        """
        members = mesh_ranks.ravel().tolist()
        inside = self.coordinates[members]
        moving = [i for i in range(len(self.axes)) if len(set(inside[:, i].tolist())) > 1]
        order = {tuple(place): k for k, place in enumerate(inside[:, moving].tolist())}
        found = [order.get(tuple(place), 0) for place in self.coordinates[:, moving].tolist()]
        return np.stack(np.unravel_index(np.array(found), mesh_ranks.shape), axis=1)


def layout_of(mesh_shape: Any, axes: Any) -> Layout:
    """The layout that the arguments of ``plan`` name.

    Raises:
        InputsError: if they name none.
    """
    shape = (mesh_shape,) if isinstance(mesh_shape, int) else mesh_shape
    is_shape = isinstance(shape, (tuple, list)) and len(shape) > 0
    if not is_shape or not all(type(n) is int and n > 0 for n in shape):
        raise InputsError(
            f"mesh_shape={mesh_shape!r} is no shape of a mesh: give sizes of 1 or more, such as "
            "(64, 8)"
        )
    if math.prod(shape) > MAX_RANKS:
        raise InputsError(f"mesh_shape={mesh_shape!r} has more than {MAX_RANKS:,} ranks")
    if axes is None:
        axes = DEFAULT_AXES.get(len(shape)) or tuple(f"axis{i}" for i in range(len(shape)))
    names = (axes,) if isinstance(axes, str) else axes
    is_named = isinstance(names, (tuple, list)) and all(
        isinstance(name, str) and name for name in names
    )
    if not is_named or len(set(names)) != len(shape) or len(names) != len(shape):
        raise InputsError(
            f"mesh_dim_names={axes!r} does not name the {len(shape)} axes of mesh_shape="
            f"{tuple(shape)}, each by a name of its own"
        )
    return Layout(tuple(shape), tuple(names))
