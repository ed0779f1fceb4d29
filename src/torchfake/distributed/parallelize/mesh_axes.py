"""The axes of a mesh by purpose: shard, replicate, split tensors, sequences, experts or layers.

Input: sizes by name, or text such as ``dp=8,tp=8``, and a number of GPUs. Output: a
:class:`MeshAxes`. Invariant: each axis has one purpose; the product of sizes is the number of GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torchfake._core.arguments import check_text, is_whole_number
from torchfake.errors import InputsError, did_you_mean

SHARD_NAMES = ("dp", "fsdp", "shard", "dp_shard")
REPLICATE_NAMES = ("replicate", "dp_replicate", "ddp")
TENSOR_NAMES = ("tp",)
CONTEXT_NAMES = ("cp",)
EXPERT_NAMES = ("ep",)
PIPELINE_NAMES = ("pp",)
_JOBS = (
    *(SHARD_NAMES, REPLICATE_NAMES, TENSOR_NAMES, CONTEXT_NAMES, EXPERT_NAMES, PIPELINE_NAMES),
)
_KNOWN = tuple(name for names in _JOBS for name in names)


@dataclass(frozen=True)
class MeshAxes:
    """The axes of a mesh, in order, and the axis for each purpose; "" if there is none."""

    sizes: Mapping[str, int]
    shard: str
    replicate: str
    tensor: str
    context: str = ""
    experts: str = ""
    pipeline: str = ""

    @property
    def num_ranks(self) -> int:
        """The number of ranks of the mesh."""
        return math.prod(self.sizes.values())

    @property
    def data_ranks(self) -> int:
        """The number of ranks, or groups of ranks, that process different samples."""
        return self._ranks(self.shard, self.replicate, self.experts)

    @property
    def sharding(self) -> list[str]:
        """The axes, in order, along which parameters are sharded: all axes along which ranks
        process different tokens, except the axis of replicas.
        """
        names = self.shard, self.context, self.experts
        return [name for name, size in self.sizes.items() if name in names and size > 1]

    @property
    def wraps_modules(self) -> bool:
        """Whether modules are sharded or replicated; the wrappers provide mixed precision."""
        return bool(self.sharding) or self._ranks(self.replicate) > 1

    @property
    def tensor_ranks(self) -> int:
        """The number of ranks that each tensor is split over."""
        return self._ranks(self.tensor)

    @property
    def context_ranks(self) -> int:
        """The number of ranks that each sequence is split over."""
        return self._ranks(self.context)

    @property
    def expert_ranks(self) -> int:
        """The number of ranks that the experts are distributed over, without tensor parallelism."""
        return self._ranks(self.experts)

    @property
    def pipeline_ranks(self) -> int:
        """The number of ranks of the pipeline, through which each sample passes in turn."""
        return self._ranks(self.pipeline)

    def _ranks(self, *names: str) -> int:
        return math.prod(self.sizes.get(name, 1) for name in names)


def larger(sizes: Mapping[str, int]) -> dict[str, int]:
    """The axes that have more than one rank."""
    return {name: size for name, size in sizes.items() if size > 1}


def mesh_text(sizes: Mapping[str, int]) -> str:
    """The sizes of axes as ``--mesh`` takes them.

    >>> mesh_text({"dp": 4, "tp": 2})
    'dp=4,tp=2'
    """
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def mesh_axes(sizes: Mapping[str, int]) -> MeshAxes:
    """The axes of a mesh, from their sizes by name.

    Raises:
        InputsError: if a name or a size is invalid.
    """
    for name, size in sizes.items():
        if name not in _KNOWN:
            raise InputsError(f"the mesh has an axis {name!r}{_remedy(name)}")
        if not is_whole_number(size, 1):
            raise InputsError(f"the mesh has {name}={size!r}: give a number of ranks, 1 or more")
    if not sizes:
        raise InputsError("the mesh has no axes: give their sizes, such as dp=64")
    shard, replicate, tensor, context, experts, pipeline = (_only(sizes, names) for names in _JOBS)
    order = list(sizes)
    if shard and replicate and order.index(shard) < order.index(replicate):
        raise InputsError(
            f"the mesh has {shard!r} before {replicate!r}: FSDP2 takes the axis that replicates "
            f"first, {replicate}={sizes[replicate]},{shard}={sizes[shard]}"
        )
    if experts and not (shard and tensor):  # the code for experts needs both, if only of size 1
        sizes = {**({} if shard else {"dp": 1}), **sizes, **({} if tensor else {"tp": 1})}
        return mesh_axes({**({replicate: sizes[replicate]} if replicate else {}), **sizes})
    return MeshAxes(dict(sizes), shard, replicate, tensor, context, experts, pipeline)


def _only(sizes: Mapping[str, int], names: tuple[str, ...]) -> str:
    """The axis of the mesh that has one of these names."""
    found = [name for name in sizes if name in names]
    if len(found) > 1:
        raise InputsError(
            f"the mesh has {' and '.join(found)}, which are names of the same axis: give one"
        )
    return found[0] if found else ""


def _remedy(name: str) -> str:
    if name == "sp":
        return (
            ": the sequence is split along tp, with sequence_parallel=True (--sequence-parallel), "
            "or along cp, in attention too"
        )
    hint = did_you_mean(str(name), _KNOWN)
    return hint or (
        ": dp shards (FSDP2), replicate copies (HSDP, DDP), tp splits tensors, cp sequences, ep "
        "experts, pp layers into stages"
    )


def axes_of(mesh: Mapping[str, int] | str | None, gpus: int | None) -> MeshAxes:
    """The axes of a mesh that is given as sizes by name, or as :func:`parse_mesh` reads it.

    Raises:
        TypeError: if `mesh` is neither.
        InputsError: if it is invalid, or does not have so many GPUs.
    """
    if not isinstance(mesh, Mapping):
        if mesh is not None:
            check_text(mesh, "mesh", "tp=8")
        return parse_mesh(mesh, gpus)
    axes = mesh_axes(mesh)
    if gpus not in (None, axes.num_ranks):
        raise InputsError(f"the mesh has {axes.num_ranks} ranks, and gpus is {gpus}: give one")
    return axes


def parse_mesh(text: str | None, gpus: int | None) -> MeshAxes:
    """The axes that ``--mesh`` and ``--gpus`` describe; the rest of the GPUs shard.

    Raises:
        InputsError: if they contradict each other.

    >>> parse_mesh("tp=8", 64).sizes, parse_mesh(None, 64).sizes
    ({'dp': 8, 'tp': 8}, {'dp': 64})
    """
    if gpus is not None and not is_whole_number(gpus, 1):
        raise InputsError(f"gpus={gpus!r} is not a number of GPUs, 1 or more")
    if text is None:
        if gpus is None:
            raise InputsError("give the number of GPUs, --gpus 64, or a mesh, --mesh dp=8,tp=8")
        return mesh_axes({"dp": gpus})
    given = _sizes(text)
    axes = mesh_axes(given)
    if gpus is None or axes.num_ranks == gpus:
        return axes
    others = axes.num_ranks // axes.sizes.get(axes.shard, 1)
    rest = gpus // others if gpus % others == 0 else None
    if axes.shard not in given and rest is not None:
        return mesh_axes(_with_shards(axes, rest))
    named = ",".join(f"{name}={size}" for name, size in axes.sizes.items() if name != axes.shard)
    left = f": {named or 'the rest'} leaves {axes.shard or 'dp'}={rest}" if rest is not None else ""
    if rest is None:
        left = f", no multiple of {others}: sizes multiply; give another --gpus or --mesh"
    raise InputsError(f"--mesh {text} has {axes.num_ranks} ranks, and --gpus is {gpus}{left}")


def _with_shards(axes: MeshAxes, size: int) -> dict[str, int]:
    """Insert a sharding axis into the sizes: inside pipeline and replicas, outside other axes."""
    outer = axes.pipeline, axes.replicate
    before = {name: n for name, n in axes.sizes.items() if name in outer}
    after = {n: k for n, k in axes.sizes.items() if n not in (*outer, axes.shard)}
    name = "shard" if axes.replicate == "replicate" else "dp"
    name = "dp_shard" if axes.replicate == "dp_replicate" else name
    return {**before, **({name: size} if size > 1 or not axes.replicate else {}), **after}


def _sizes(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        name = name.strip()
        if not name or not size.strip().isdecimal():
            raise InputsError(f"--mesh {text!r} is not of the form dp=8,tp=8")
        if name in sizes:
            raise InputsError(f"--mesh {text!r} has {name!r} twice")
        sizes[name] = int(size)
    return sizes
