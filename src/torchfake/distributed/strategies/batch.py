"""A global batch as micro-batches of the data ranks.

Input: sizes, of which some are given. Output: a :class:`Batch`. Invariant: micro-batches times
their number times the data ranks is the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchfake._core.arguments import is_whole_number
from torchfake.errors import InputsError


@dataclass(frozen=True)
class Batch:
    """What all ranks have in a step, and what one of them has at a time."""

    size: int  # of all ranks in a step
    micro: int  # of one data rank in a forward pass
    accumulate: int  # micro-batches of a data rank in a step
    data_ranks: int


def batch_of(size: int | None, micro: int | None, accumulate: int | None, data_ranks: int) -> Batch:
    """The batch that these describe; a micro-batch of 1 if none of them says.

    Raises:
        InputsError: if they do not divide.

    >>> batch_of(512, None, None, 64)
    Batch(size=512, micro=8, accumulate=1, data_ranks=64)
    """
    for name, value in (("batch", size), ("micro-batch", micro), ("accumulate", accumulate)):
        if value is not None and not is_whole_number(value, 1):
            raise InputsError(f"{name} is {value!r}: give a whole number of 1 or more")
    if size is None:
        micro, accumulate = micro or 1, accumulate or 1
        return Batch(micro * accumulate * data_ranks, micro, accumulate, data_ranks)
    _check_divides(size, data_ranks, f"among {data_ranks} data ranks")
    of_rank = size // data_ranks
    if micro is None:
        accumulate = accumulate or 1
        parts = f"into {accumulate} micro-batches on each of {data_ranks} data ranks"
        _check_divides(size, accumulate * data_ranks, parts)
        return Batch(size, of_rank // accumulate, accumulate, data_ranks)
    _check_divides(size, micro * data_ranks, f"into micro-batches of {micro} on {data_ranks} ranks")
    if accumulate not in (None, of_rank // micro):
        raise InputsError(
            f"a batch of {size} on {data_ranks} data ranks is {of_rank // micro} micro-batches of "
            f"{micro} each, not {accumulate}: give two of batch, micro-batch and accumulate"
        )
    return Batch(size, micro, of_rank // micro, data_ranks)


def _check_divides(size: int, divisor: int, how: str) -> None:
    if size % divisor:
        lower, upper = size // divisor * divisor, -(-size // divisor) * divisor
        near = f"{lower} or {upper}" if lower else f"{upper}"
        raise InputsError(f"a batch of {size} does not divide {how}: give {near}")
