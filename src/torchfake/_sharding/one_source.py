"""Which tensors one rank sends to the others, agreed upon before any is sent.

Input: the tensors of each rank, described. Output: what is sent, in order, or an error on all ranks
that names the first that does not fit. Invariant: what is sent has the dtype and the global shape
that each receiver has, and values that the source knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from torchfake._sharding.local_slices import Ranges
from torchfake.errors import RankMismatchError

BATCH_BYTES = 64 * 1024 * 1024
"""Bytes of full tensors after which ranks tell each other whether one has failed."""


class Described(NamedTuple):
    """A tensor as one rank has it."""

    signature: str  # dtype and global shape
    num_bytes: int  # of the full tensor
    names: tuple[str, ...]  # all that it has in the module
    ranges: tuple[Ranges, ...] | None  # that this rank has of it; None: all
    is_deferred: bool
    is_attribute: bool = False  # held by a module as a plain attribute


ByName = dict[str, Described]


class Sent(NamedTuple):
    """A tensor that is sent."""

    name: str
    num_bytes: int
    to_all: bool  # the same to all other ranks; else to each what it has of it
    overwrites: bool  # what is real on a receiver, too: a checkpoint has it

    def is_for(self, described: Described) -> bool:
        """Whether a rank that has the tensor so gets its values."""
        return described.is_deferred or self.overwrites


def planned(
    by_rank: Mapping[int, ByName],
    source: int,
    given: Collection[str],
    unknown: Mapping[str, str],
) -> list[Sent]:
    """What is sent, in the order of the source's tensors.

    Args:
        by_rank: the tensors of all ranks.
        source: the rank that has the values.
        given: names of those that a checkpoint has.
        unknown: why the source does not have the values of a tensor.

    Raises:
        RankMismatchError: naming the first tensor that cannot be sent.
    """
    own = by_rank[source]
    others = {rank: tensors for rank, tensors in by_rank.items() if rank != source}
    for rank, tensors in others.items():
        for problem in _problems(tensors, rank, own, source):
            raise _mismatch(problem)
    sent = []
    for name, described in own.items():
        wanted = Sent(name, described.num_bytes, to_all=False, overwrites=name in given)
        receiving = receivers(by_rank, wanted, source)
        if not receiving or not described.num_bytes:
            continue
        if name in unknown and not wanted.overwrites:
            raise _mismatch(f"{unknown[name]}, and rank {next(iter(receiving))} needs them")
        is_whole = all(each.ranges is None for each in receiving.values())
        sent.append(wanted._replace(to_all=is_whole and receiving.keys() == others.keys()))
    return sent


def receivers(by_rank: Mapping[int, ByName], sent: Sent, source: int) -> dict[int, Described]:
    """The ranks to which the source sends `sent`, and what they have of it."""
    return {
        rank: tensors[sent.name]
        for rank, tensors in by_rank.items()
        if rank != source and sent.name in tensors and sent.is_for(tensors[sent.name])
    }


def batches(sent: list[Sent]) -> Iterator[list[Sent]]:
    """The same in order, as many at a time as have :data:`BATCH_BYTES`."""
    batch: list[Sent] = []
    num_bytes = 0
    for each in sent:
        if batch and num_bytes + each.num_bytes > BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(each)
        num_bytes += each.num_bytes
    if batch:
        yield batch


def _mismatch(problem: str) -> RankMismatchError:
    return RankMismatchError(f"{problem}. Build the same model on all ranks. Nothing was changed")


def _problems(tensors: ByName, rank: int, own: ByName, source: int) -> Iterator[str]:
    """How the tensors of a rank do not fit those of the source."""
    for name, described in own.items():
        if not described.is_attribute and name not in tensors:
            yield f"rank {source} has {name}, and rank {rank} does not"
    for name, described in tensors.items():
        if described.is_attribute and not described.is_deferred:
            continue
        if name not in own:
            yield f"rank {rank} has {name}, and rank {source} does not"
        elif described.signature != own[name].signature:
            yield (
                f"{name} is {own[name].signature} on rank {source}, and {described.signature} on "
                f"rank {rank}"
            )
        elif described.names != own[name].names:
            is_tied = len(own[name].names) > len(described.names)
            tied, apart = (source, rank) if is_tied else (rank, source)
            names = " and ".join(own[name].names if is_tied else described.names)
            yield f"{names} are one tensor on rank {tied}, and not on rank {apart}"
