"""A check that all ranks have recorded the same operations.

Input: DTensors of deferred shards, by name. Output: nothing, or an error on all ranks that names
the ranks that differ. Invariant: the check runs before any value is computed; each rank sends 32
bytes, and details only if digests differ.

Ranks record their shards without communication, so a rank with another seed or config would go
unnoticed, and train on weights that do not fit together. The sources of shards are compared, since
the digest of a shard's own record differs by rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple

import torch

from torchfake._graph.digest import digest_of_contents, hash_parts
from torchfake._sharding.provenance import shard_source
from torchfake._torch.distributed import dtensors
from torchfake.errors import RankMismatchError

Origin = Literal["deferred", "materialized", "real"]
"""Deferred; materialized before, such as in a call that failed on another rank; never deferred."""


class _Parameter(NamedTuple):
    """A sharded parameter as one rank has recorded it."""

    signature: str  # dtype and global shape
    digest: bytes  # of its source; empty: unknown on this rank
    is_exchanged: bool = False  # whether ranks draw and exchange its rows
    origin: Origin = "deferred"


Parameters = dict[str, _Parameter]


def check_agreement(
    shards: list[tuple[str, torch.Tensor]],
    *,
    real: Iterable[tuple[str, torch.Tensor]] = (),
    exchanged: Collection[str] = (),
    meshes: Iterable[Any] = (),
) -> None:
    """Check that the ranks of each mesh have recorded the same. All ranks must call this.

    Args:
        shards: names and DTensors of deferred shards.
        real: names and DTensors of real shards, beside those.
        exchanged: names of the shards whose rows ranks will exchange.
        meshes: meshes whose ranks have to agree even if this rank has no deferred shard on them.

    Raises:
        RankMismatchError: on all ranks alike, naming the ranks that differ from the majority, and
            the first parameter that differs.
    """
    by_mesh: dict[Any, Parameters] = {m: {} for m in meshes if dtensors.can_communicate(m)}
    for name, dtensor in shards:
        mesh: Any = dtensor.device_mesh  # type: ignore[attr-defined]
        if dtensors.can_communicate(mesh):
            by_mesh.setdefault(mesh, {})[name] = _described(dtensor, name in exchanged)
    for name, dtensor in real:
        mesh = dtensor.device_mesh  # type: ignore[attr-defined]
        if dtensors.can_communicate(mesh):
            by_mesh.setdefault(mesh, {})[name] = _described_real(dtensor)
    for mesh, parameters in by_mesh.items():
        digests = dtensors.gather_over_mesh(mesh, hash_parts(sorted(parameters.items())))
        if len(set(digests.values())) > 1:
            _check_equal(dtensors.gather_over_mesh(mesh, parameters))


def _described(dtensor: Any, is_exchanged: bool) -> _Parameter:
    signature = _signature(dtensor)
    source = shard_source(dtensor)
    if source is None:
        return _Parameter(signature, b"", is_exchanged)
    layout = source.offset, tuple(dtensor.stride())
    digest = hash_parts(digest_of_contents(source.contents), layout)
    return _Parameter(signature, digest, is_exchanged)


def _described_real(dtensor: Any) -> _Parameter:
    origin: Origin = "materialized" if dtensor in dtensors.materialized else "real"
    return _Parameter(_signature(dtensor), b"", origin=origin)


def _signature(dtensor: Any) -> str:
    return f"{str(dtensor.dtype).removeprefix('torch.')}{list(dtensor.shape)}"


# The differences between ranks.


def _check_equal(by_rank: dict[int, Parameters]) -> None:
    """Raise an error if a rank's parameters differ from those of the majority."""
    majority = _majority(by_rank)
    differences = {}
    for rank in sorted(by_rank):
        difference = _difference(by_rank[rank], majority)
        if difference is not None:
            differences[rank] = difference
    if not differences:
        return
    equal_ranks = [rank for rank in sorted(by_rank) if rank not in differences]
    others = f"rank {equal_ranks[0]}" if equal_ranks else "the others"
    if len(equal_ranks) > 1:
        others += " and the others"
    first, difference = next(iter(differences.items()))
    raise RankMismatchError(
        f"{_ranks_text(list(differences))} recorded different operations than {others}: on rank "
        f"{first}, {difference}. Build the model from the same config on all ranks, and call "
        "torch.manual_seed with the same number just before. No value was computed"
    )


def _majority(by_rank: dict[int, Parameters]) -> Parameters:
    """The parameters as most ranks have them; the lowest ranks decide a tie."""
    found: dict[str, list[_Parameter]] = {}
    for rank in sorted(by_rank):
        for name, parameter in by_rank[rank].items():
            found.setdefault(name, []).append(parameter)
    majority = {}
    for name, parameters in found.items():
        if 2 * len(parameters) > len(by_rank) or name in by_rank[min(by_rank)]:
            digests = Counter(parameter.digest for parameter in parameters if parameter.digest)
            signatures = Counter(parameter.signature for parameter in parameters)
            digest = digests.most_common(1)[0][0] if digests else b""
            deferred = [p for p in parameters if p.origin == "deferred"]
            ways = Counter(parameter.is_exchanged for parameter in deferred or parameters)
            is_exchanged = ways.most_common(1)[0][0]
            signature = signatures.most_common(1)[0][0]
            origin: Origin = "deferred" if deferred else parameters[0].origin
            majority[name] = _Parameter(signature, digest, is_exchanged, origin)
    return majority


def _difference(own: Parameters, majority: Parameters) -> str | None:
    """The most telling difference: names and shapes first, since another model has other values
    everywhere.
    """
    for name in majority:
        if name not in own:
            return f"{name} is missing"
    for name in own:
        if name not in majority:
            return f"{name} exists, which the others do not have"
    for name, expected in majority.items():
        if own[name].signature != expected.signature:
            return f"{name} is {own[name].signature}, and {expected.signature} on the others"
    for name, expected in majority.items():
        if own[name].origin == "real" and expected.origin == "deferred":
            return (
                f"{name} is real, and was never deferred: defer the module on all ranks, or, where "
                "one rank has the values, call materialize_module(module, from_rank=...) on all"
            )
    for name, expected in majority.items():
        if own[name].digest and expected.digest and own[name].digest != expected.digest:
            return (
                f"{name} has different values: another seed, other random draws before it, or a "
                "change since"
            )
    for name, expected in majority.items():
        if own[name].origin == "deferred" and own[name].is_exchanged != expected.is_exchanged:
            not_here = "" if own[name].is_exchanged else "not "
            return (
                f"rows of {name} are {not_here}exchanged, unlike on the others: pass the same "
                "exchange= to materialize_module on all ranks"
            )
    return None


def _ranks_text(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
