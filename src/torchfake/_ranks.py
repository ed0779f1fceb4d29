"""Whether all ranks have recorded the same.

Enters: DTensors of deferred shards. Leaves: nothing, or an error that names the ranks. Invariant:
it is found out before any value is made; 32 bytes a rank are exchanged, and more only to say what
differs.

Ranks make their shards without a word to each other, so one with another seed or another config
would go unnoticed, and train on weights that do not fit together. What is compared is what shards
were cut from: the digest of a shard's own record would differ by rank.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import torch

from torchfake import _private_distributed as _distributed
from torchfake._digest import digest_of_contents, packed
from torchfake._graph import Contents, Op, Read
from torchfake._ops import plan_of
from torchfake._pieces import is_factory
from torchfake._wanted import copied
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


def _whole(dtensor: torch.Tensor) -> _Whole:
    what = f"{str(dtensor.dtype).removeprefix('torch.')}{list(dtensor.shape)}"
    shard: Any = _distributed.shard_of(dtensor)
    recorded = shard._fake_storage.recorded
    if recorded.real is not None or not shard.numel():
        return _Whole(what, b"")
    return _Whole(what, _digest(recorded.contents, dtensor.numel()))


def _digest(contents: Contents, num_elements: int) -> bytes:
    """Of the whole, of `num_elements`, that a shard was cut from.

    What was done to the shard itself is left out: it says how large that is, which differs by rank.
    """
    op = contents.op
    while op is not None:
        source = _cut_from(op) or _changed(op, num_elements)
        if source is None:
            return digest_of_contents(contents)
        contents = source.contents
        op = contents.op
    return packed("nothing")


def _cut_from(op: Op) -> Read | None:
    """Where the elements that `op` makes come from, if they are those of its argument: copies of a
    part, padding, and memory made for that.
    """
    pair = copied(op)
    if pair is not None:
        return pair[1]
    if not hasattr(op.func, "_schema"):
        return None
    takes_shape = is_factory(op) and plan_of(op.func).packet.startswith("aten::new_")
    if takes_shape or plan_of(op.func).packet == "aten::constant_pad_nd":
        return op.args[0] if type(op.args[0]) is Read else None
    return None


def _changed(op: Op, num_elements: int) -> Read | None:
    """What `op` looks at, if that is less than the whole."""
    reads = list(op.reads())
    records = [read.record for read in reads] + [made.record for made in op.made]
    if not reads or any(math.prod(record.size) >= num_elements for record in records):
        return None
    return next((read for read in reads if read.contents.op is not None), reads[0])


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
