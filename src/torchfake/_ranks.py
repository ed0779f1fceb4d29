"""Whether all ranks have recorded the same.

Enters: DTensors of deferred shards. Leaves: nothing, or an error that names the ranks. Invariant:
it is found out before any value is made; 32 bytes a rank are exchanged, and more only to say what
differs.

Ranks make their shards without a word to each other, so one with another seed or another config
would go unnoticed, and train on weights that do not fit together. What is compared is what shards
were cut from: the digest of a shard's own record would differ by rank.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch

from torchfake import _private_distributed as _distributed
from torchfake._cut import whole_of
from torchfake._digest import digest_of_contents, packed
from torchfake.errors import RankMismatchError


class _Whole(NamedTuple):
    """A parameter that is sharded, as all ranks should have it."""

    what: str  # dtype and shape
    digest: bytes  # empty: this rank cannot tell


Wholes = dict[str, _Whole]


def check_agreement(shards: list[tuple[str, torch.Tensor]]) -> None:
    """Find out whether the ranks of each mesh have recorded the same. All of them must ask.

    Args:
        shards: names and DTensors of deferred shards.

    Raises:
        RankMismatchError: on all ranks alike, naming those that differ from the most, and the first
            parameter.
    """
    meshes: dict[Any, Wholes] = {}
    for name, dtensor in shards:
        mesh: Any = dtensor.device_mesh  # type: ignore[attr-defined]
        if _distributed.can_exchange(mesh):
            meshes.setdefault(mesh, {})[name] = _whole(dtensor)
    for mesh, wholes in meshes.items():
        digests = _distributed.exchange(mesh, packed(sorted(wholes.items())))
        if len(set(digests.values())) > 1:
            _compare(_distributed.exchange(mesh, wholes))


def _whole(dtensor: Any) -> _Whole:
    what = f"{str(dtensor.dtype).removeprefix('torch.')}{list(dtensor.shape)}"
    whole = whole_of(dtensor)
    if whole is None:
        return _Whole(what, b"")
    place = whole.offset, tuple(dtensor.stride())
    return _Whole(what, packed(digest_of_contents(whole.contents), place))


# What differs.


def _compare(by_rank: dict[int, Wholes]) -> None:
    usual = _usual(by_rank)
    odd = {
        rank: found
        for rank in sorted(by_rank)
        if (found := _difference(by_rank[rank], usual)) is not None
    }
    if not odd:
        return
    usual_ranks = [rank for rank in sorted(by_rank) if rank not in odd]
    others = f"rank {usual_ranks[0]}" if usual_ranks else "the others"
    if len(usual_ranks) > 1:
        others += " and the others"
    rank, difference = next(iter(odd.items()))
    raise RankMismatchError(
        f"{_listed(list(odd))} recorded another program than {others}: on rank {rank}, "
        f"{difference}. Build the model from the same config on all ranks, with torch.manual_seed "
        "of the same number just before. Nothing was made"
    )


def _usual(by_rank: dict[int, Wholes]) -> Wholes:
    """What most ranks have; of as many, what the first of them have."""
    found: dict[str, list[_Whole]] = {}
    for rank in sorted(by_rank):
        for name, whole in by_rank[rank].items():
            found.setdefault(name, []).append(whole)
    usual = {}
    for name, wholes in found.items():
        if 2 * len(wholes) > len(by_rank) or name in by_rank[min(by_rank)]:
            digests = Counter(whole.digest for whole in wholes if whole.digest)
            what = Counter(whole.what for whole in wholes).most_common(1)[0][0]
            digest = digests.most_common(1)[0][0] if digests else b""
            usual[name] = _Whole(what, digest)
    return usual


def _difference(mine: Wholes, usual: Wholes) -> str | None:
    """What tells most: another model is seen by its shapes, and has other values everywhere."""
    for name in usual:
        if name not in mine:
            return f"{name} is missing"
    for name in mine:
        if name not in usual:
            return f"{name} is there, which the others do not have"
    for name, whole in usual.items():
        if mine[name].what != whole.what:
            return f"{name} is {mine[name].what} there and {whole.what} on the others"
    for name, whole in usual.items():
        if mine[name].digest and whole.digest and mine[name].digest != whole.digest:
            return (
                f"{name} is of other values: another seed, other draws before it, or changed "
                "otherwise since"
            )
    return None


def _listed(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
