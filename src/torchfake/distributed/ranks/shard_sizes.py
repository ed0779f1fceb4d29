"""The sizes of shards on all ranks, computed from the DTensors of one rank.

Input: the DTensors in the step of one rank. Output: groups of ranks whose shards all have equal
sizes. Invariant: nothing is run; sizes are computed from the placements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from torchfake._torch.distributed.dtensors import is_dtensor
from torchfake._torch.distributed.training import parts_of_optimizer
from torchfake.distributed.layout import Layout


class UnevenShards:
    """The DTensors met so far whose local shapes differ by rank."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.shape_ids: dict[Any, np.ndarray[Any, Any]] = {}
        """By global shape, placements and mesh: for each rank a number for its local shape."""
        self._num_parts = 0  # optimizers whose state is sharded over ranks
        self._seen: dict[Any, Any] = {}  # values keep each mesh alive, so its id is not reused

    def register(self, tensors: Iterable[Any]) -> None:
        """Add the DTensors among tensors and lists of tensors."""
        for tensor in tensors:
            if isinstance(tensor, (list, tuple)):
                self.register(tensor)
            elif is_dtensor(tensor):
                key = tuple(tensor.shape), tensor.placements, id(tensor.device_mesh)
                if key not in self._seen:
                    self._seen[key] = tensor.device_mesh
                    self._add_if_uneven(tuple(tensor.shape), tensor.placements, tensor.device_mesh)

    def register_parts(self, optimizer: Any) -> None:
        """Add an optimizer whose state is sharded over the ranks."""
        found = parts_of_optimizer(optimizer)
        if found is None:
            return
        parts, ranks = found
        shapes = [tuple(tuple(param.shape) for param in part) for part in parts]
        numbers = {shape: i for i, shape in enumerate(dict.fromkeys(shapes))}
        ids = np.array([numbers[shape] for shape in shapes])
        places = self.layout.coordinates_in(np.array(ranks))[:, 0]
        self._num_parts += 1
        self.shape_ids["parts of an optimizer", self._num_parts] = ids[places]

    def _add_if_uneven(self, shape: tuple[int, ...], placements: Any, mesh: Any) -> None:
        sharded = [(i, p) for i, p in enumerate(placements) if getattr(p, "dim", None) is not None]
        num_shards: dict[int, int] = {}  # dimension -> number of shards
        for axis, placement in sharded:
            num_shards[placement.dim] = num_shards.get(placement.dim, 1) * mesh.shape[axis]
        if all(shape[dim] % number == 0 for dim, number in num_shards.items()):
            return
        ranks = np.array(mesh.mesh.tolist())
        coordinates = self.layout.coordinates_in(ranks)
        sharded.sort(key=lambda pair: _has_split_factor(pair[1]))
        shapes = _local_shapes(shape, sharded, ranks.shape, coordinates)
        _, shape_ids = np.unique(shapes, axis=0, return_inverse=True)
        key = shape, tuple(map(str, placements)), mesh.mesh_dim_names, ranks.shape
        self.shape_ids[key] = shape_ids.ravel()


def _has_split_factor(placement: Any) -> bool:
    """Whether a placement shards shards of another placement, as FSDP after tensor parallelism."""
    return getattr(placement, "split_factor", 1) != 1


def _local_shapes(
    shape: tuple[int, ...],
    sharded: list[tuple[int, Any]],
    mesh_shape: tuple[int, ...],
    coordinates: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Local shapes, int64 [ranks, dims], after splits like those of ``torch.chunk``, in order."""
    shapes = np.tile(np.array(shape, dtype=np.int64), (len(coordinates), 1))
    for axis, placement in sharded:
        sizes = shapes[:, placement.dim]
        chunk_sizes = -(-sizes // mesh_shape[axis])
        starts = coordinates[:, axis] * chunk_sizes
        shapes[:, placement.dim] = np.clip(sizes - starts, 0, chunk_sizes)
    return shapes


def equal_ranks(layout: Layout, shape_ids: Iterable[np.ndarray[Any, Any]]) -> list[list[int]]:
    """Groups of ranks with shards of equal shapes, in order of their first ranks."""
    columns = [np.zeros(layout.num_ranks, dtype=np.int64), *shape_ids]
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, key in enumerate(map(tuple, np.stack(columns, axis=1).tolist())):
        groups.setdefault(key, []).append(rank)
    return list(groups.values())


class ObservedOptimizer:
    """A function that creates an optimizer, and registers it if its state is sharded over ranks."""

    def __init__(self, make: Callable[[Any], Any], uneven: UnevenShards) -> None:
        self._make, self._uneven = make, uneven

    def __repr__(self) -> str:
        return repr(self._make)

    def __call__(self, parameters: Any) -> Any:
        made = self._make(parameters)
        self._uneven.register_parts(made)
        return made
