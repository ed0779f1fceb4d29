"""A mesh of ranks as numbers: the coordinates of each rank, and the axes of groups of ranks.

Input: the sizes and names of axes. Output: a :class:`Layout`. Invariant: ranks are numbered along
the last axis first, as by ``init_device_mesh``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from torchfake.errors import InputsError

DEFAULT_AXES = {1: ("dp",), 2: ("dp", "tp"), 3: ("pp", "dp", "tp")}
"""The default names of the axes of a mesh, by the number of axes."""

MAX_RANKS = 1 << 17
"""The most ranks of a mesh: a mesh is a tensor of ranks, and a fake keeps values up to 1 MiB."""


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
        """The coordinates of each rank, int64 [ranks, axes]."""
        return np.stack(np.unravel_index(np.arange(self.num_ranks), self.shape), axis=1)

    @property
    def text(self) -> str:
        """The sizes of the axes as text: ``dp 8 x tp 2``."""
        return " x ".join(f"{axis} {n}" for axis, n in zip(self.axes, self.shape, strict=True))

    def text_of(self, rank: int) -> str:
        """The coordinates of a rank as text: ``dp 3, tp 0``."""
        own = self.coordinates[rank].tolist()
        return ", ".join(f"{axis} {i}" for axis, i in zip(self.axes, own, strict=True))

    def axis_along(self, ranks: Sequence[int]) -> str:
        """The axis that a group of ranks lies along; several axes joined by ``x``."""
        axes = self._axes_within(ranks)
        names = " x ".join(self.axes[i] for i in axes)
        is_complete = math.prod(self.shape[i] for i in axes) == len(ranks)
        return names if is_complete else f"part of {names}"

    def coordinates_in(self, submesh: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The coordinates of each rank in its submesh, int64 [ranks, axes of the submesh].

        Args:
            submesh: the ranks in one submesh, in its shape. The other submeshes lie along the same
                axes, at other coordinates of the remaining axes.
        """
        ranks = submesh.ravel().tolist()
        axes = self._axes_within(ranks)
        order = {tuple(own): k for k, own in enumerate(self.coordinates[ranks][:, axes].tolist())}
        flat = [order.get(tuple(own), 0) for own in self.coordinates[:, axes].tolist()]
        return np.stack(np.unravel_index(np.array(flat), submesh.shape), axis=1)

    def ranks_in_node(self, axis: str, size: int, gpus_per_node: int) -> int:
        """The number of ranks of a group of `size` along `axis` that are in one node.

        Args:
            axis: the axis, as named by :meth:`axis_along`.
            size: the number of ranks in the group.
            gpus_per_node: the number of consecutive ranks in a node.
        """
        names = axis.removeprefix("part of ").split(" x ")
        others = [i for i, name in enumerate(self.axes) if name not in names]
        group = np.flatnonzero((self.coordinates[:, others] == 0).all(axis=1))[:size]
        return int((group // gpus_per_node == group[0] // gpus_per_node).sum())

    def differing(self, rank: int, peers: Iterable[int]) -> dict[Any, np.ndarray[Any, Any]]:
        """The coordinates of all ranks along each axis on which `rank` and a peer differ, since a
        program that exchanges messages may do something else at each coordinate.
        """
        axes = {axis for peer in peers for axis in self._axes_within([rank, peer])}
        return {("point to point", axis): self.coordinates[:, axis] for axis in sorted(axes)}

    def _axes_within(self, ranks: Sequence[int]) -> list[int]:
        """The axes along which ranks have different coordinates."""
        coordinates = self.coordinates[list(ranks)]
        return [i for i in range(len(self.axes)) if len(set(coordinates[:, i].tolist())) > 1]


def layout_of(mesh_shape: Any, axes: Any) -> Layout:
    """The layout that the arguments of ``plan`` describe.

    Raises:
        InputsError: if the arguments contradict each other.
    """
    shape = (mesh_shape,) if isinstance(mesh_shape, int) else mesh_shape
    is_shape = isinstance(shape, (tuple, list)) and len(shape) > 0
    if not is_shape or not all(type(n) is int and n > 0 for n in shape):
        raise InputsError(
            f"mesh_shape={mesh_shape!r} is not a mesh shape: give sizes of 1 or more, such as "
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
