"""DTensors: what one rank holds of them, and what the others do.

Enters: DTensors, as one rank meets them. Leaves: their local tensors, and which ranks hold shards
of other sizes. Invariant: nothing is run; sizes are those that placements give.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from torchfake import _private_distributed
from torchfake._private import tensors_inside
from torchfake.distributed.layout import Layout


def local_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory of their own that `tensor` stands for: what a DTensor holds."""
    inside = [held for held in tensors_inside(tensor) if isinstance(held, torch.Tensor)]
    return [local for held in inside for local in local_tensors(held)] if inside else [tensor]


def is_dtensor(value: Any) -> bool:
    """Whether it is a DTensor; torch's is not imported to find out."""
    return isinstance(value, _private_distributed.dtensor_class())


class Uneven:
    """The DTensors met so far that are not the same size on all ranks, by shape and placements."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.columns: dict[Any, np.ndarray[Any, Any]] = {}  # which of its local shapes a rank has
        self._met: dict[Any, Any] = {}  # and the mesh, kept so that its id stays its own

    def meet(self, tensors: Iterable[Any]) -> None:
        """Take note of the DTensors among these."""
        for tensor in tensors:
            if isinstance(tensor, (list, tuple)):
                self.meet(tensor)
            elif is_dtensor(tensor):
                key = tuple(tensor.shape), tensor.placements, id(tensor.device_mesh)
                if key not in self._met:
                    self._met[key] = tensor.device_mesh
                    self._look_at(*key[:2], tensor.device_mesh)

    def _look_at(self, shape: tuple[int, ...], placements: Any, mesh: Any) -> None:
        cuts = [(i, p) for i, p in enumerate(placements) if getattr(p, "dim", None) is not None]
        parts: dict[int, int] = {}
        for axis, placement in cuts:
            parts[placement.dim] = parts.get(placement.dim, 1) * mesh.shape[axis]
        if all(shape[dim] % number == 0 for dim, number in parts.items()):
            return
        ranks = np.array(mesh.mesh.tolist())
        places = self.layout.places_in(ranks)
        cuts.sort(key=lambda cut: _is_strided(cut[1]))
        sizes = _sizes(shape, cuts, ranks.shape, places)
        _, column = np.unique(sizes, axis=0, return_inverse=True)
        key = shape, tuple(map(str, placements)), mesh.mesh_dim_names, ranks.shape
        self.columns[key] = column.ravel()


def _is_strided(placement: Any) -> bool:
    """Whether it cuts what other placements have cut: FSDP the shards of tensor parallelism."""
    return getattr(placement, "split_factor", 1) != 1


def _sizes(
    shape: tuple[int, ...],
    cuts: list[tuple[int, Any]],
    mesh_shape: tuple[int, ...],
    places: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """What is left on each rank, int64 [ranks, dims], of cuts like ``torch.chunk``, in order."""
    sizes = np.tile(np.array(shape, dtype=np.int64), (len(places), 1))
    for axis, placement in cuts:
        left = sizes[:, placement.dim]
        full = -(-left // mesh_shape[axis])
        sizes[:, placement.dim] = np.clip(left - places[:, axis] * full, 0, full)
    return sizes


def alike(layout: Layout, columns: Iterable[np.ndarray[Any, Any]]) -> list[list[int]]:
    """Ranks that hold shards of the same sizes, each list in order, by their first rank."""
    keys = np.stack([np.zeros(layout.num_ranks, dtype=np.int64), *columns], axis=1)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, key in enumerate(map(tuple, keys.tolist())):
        groups.setdefault(key, []).append(rank)
    return list(groups.values())
