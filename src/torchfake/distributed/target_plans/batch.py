"""A global batch as micro-batches of the data ranks.

Input: sizes, some of which may be None, and the axes. Output: a :class:`Batch`. Invariant: the size
of a micro-batch times the number of micro-batches times the data ranks is the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchfake._core.arguments import is_whole_number
from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.errors import InputsError


@dataclass(frozen=True)
class Batch:
    """The global batch of a step, divided into micro-batches of the data ranks."""

    size: int  # samples of all ranks in a step
    micro: int  # samples of one data rank in a forward pass
    accumulate: int  # micro-batches of a data rank in a step
    data_ranks: int


def batch_of(size: int | None, micro: int | None, accumulate: int | None, data_ranks: int) -> Batch:
    """The batch of these sizes; a micro-batch has one sample unless the sizes imply another number.

    Raises:
        InputsError: if the sizes do not divide evenly.

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


def micro_batches(
    size: int | None, micro: int | None, accumulate: int | None, axes: MeshAxes
) -> tuple[int | None, int | None]:
    """The samples of a micro-batch and the number of micro-batches, with defaults for pipelines:
    one sample per micro-batch; without a batch, two micro-batches for each rank of the pipeline.
    """
    if axes.pipeline_ranks == 1 or accumulate is not None:
        return micro, accumulate
    if size is None:
        return micro, 2 * axes.pipeline_ranks
    return micro or 1, None


def _check_divides(size: int, divisor: int, how: str) -> None:
    if size % divisor:
        lower, upper = size // divisor * divisor, -(-size // divisor) * divisor
        near = f"{lower} or {upper}" if lower else f"{upper}"
        raise InputsError(f"a batch of {size} does not divide {how}: give {near}")
