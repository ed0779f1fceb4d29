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
from torchfake._digest import digest_of_contents, packed
from torchfake._graph import Contents, Op, Read
from torchfake._ops import plan_of
from torchfake._pieces import is_factory
from torchfake._wanted import copied
from torchfake.errors import RankMismatchError


class _Whole(NamedTuple):
    """A parameter that is sharded, as all ranks should have it."""

    what: str  # dtype and shape
    digest: bytes

    def difference(self, other: _Whole) -> str:
        if self.what != other.what:
            return f"{self.what} there and {other.what} on the others"
        return "of other values: another seed, other draws before it, or changed otherwise since"


def check_agreement(shards: list[tuple[str, torch.Tensor]]) -> None:
    """Find out whether the ranks of each mesh have recorded the same. All of them must ask.

    Args:
        shards: names and DTensors of deferred shards.

    Raises:
        RankMismatchError: on all ranks alike, naming those that differ from the most, and the first
            parameter.
    """
    meshes: dict[Any, dict[str, _Whole]] = {}
    for name, dtensor in shards:
        mesh: Any = dtensor.device_mesh  # type: ignore[attr-defined]
        if _distributed.can_exchange(mesh):
            meshes.setdefault(mesh, {})[name] = _whole(dtensor)
    for mesh, wholes in meshes.items():
        digests = _distributed.exchange(mesh, packed(sorted(wholes.items())))
        if len(set(digests.values())) > 1:
            raise RankMismatchError(_complaint(_distributed.exchange(mesh, wholes), digests))


def _whole(dtensor: torch.Tensor) -> _Whole:
    what = f"{str(dtensor.dtype).removeprefix('torch.')}{list(dtensor.shape)}"
    shard: Any = _distributed.shard_of(dtensor)
    recorded = shard._fake_storage.recorded
    if recorded.real is not None:
        return _Whole(what, b"")
    return _Whole(what, _digest(recorded.contents))


def _digest(contents: Contents) -> bytes:
    """Of what these were cut from."""
    op = contents.op
    while op is not None:
        source = _cut_from(op)
        if source is None:
            return digest_of_contents(contents)
        contents = source.contents
        op = contents.op
    return packed("nothing")


def _cut_from(op: Op) -> Read | None:
    """Where the elements that `op` makes come from, if they are changed in place alone: copies of a
    part, padding, and memory made for that, of which an empty shard has no more.
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


def _complaint(wholes: dict[int, dict[str, _Whole]], digests: dict[int, bytes]) -> str:
    """Which ranks differ from the most, and in what first."""
    (most, _), *_ = Counter(digests.values()).most_common(1)
    usual = next(rank for rank in sorted(digests) if digests[rank] == most)
    odd = sorted(rank for rank in digests if digests[rank] != most)
    one = odd[0]
    return (
        f"{_listed(odd)} recorded another program than rank {usual}"
        f"{' and the others' if len(digests) - len(odd) > 1 else ''}: on rank {one}, "
        f"{_first_difference(wholes[one], wholes[usual])}. Build the model from the same config on "
        "all ranks, with torch.manual_seed of the same number just before. Nothing was made"
    )


def _first_difference(mine: dict[str, _Whole], others: dict[str, _Whole]) -> str:
    """What tells most: another model is seen by its shapes, and has other values everywhere."""
    for name in others:
        if name not in mine:
            return f"{name} is missing"
    for name in mine:
        if name not in others:
            return f"{name} is there, which the others do not have"
    differ = [name for name in others if mine[name] != others[name]]
    if not differ:
        return "the same parameters were sharded in another way"
    reshaped = [name for name in differ if mine[name].what != others[name].what]
    name = (reshaped or differ)[0]
    return f"{name} is {mine[name].difference(others[name])}"


def _listed(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
