"""The layouts that a search tries.

Input: a number of GPUs, a global batch. Output: candidates; for each layout, in ascending order of
the micro-batch size. Invariant: each candidate divides the GPUs and the batch evenly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torchfake.distributed.parallelize.mesh_axes import larger, mesh_text
from torchfake.inspect.timing.collectives import GPUS_PER_NODE

MAX_TENSOR_RANKS = 8
"""The most ranks that tensors are split over: the GPUs of one node, whose links are fast."""

MAX_MICRO_BATCH = 16


class Candidate(NamedTuple):
    """One layout: arguments of ``plan_target``."""

    data_ranks: int
    tensor_ranks: int
    checkpoint: str
    micro_batch: int
    offload: bool = False
    copies: int = 1  # replicas of the shards: HSDP; if as many as data ranks, like DDP
    zero: int = 3
    is_sequence_parallel: bool = False
    expert_ranks: int = 1  # the data ranks that the experts are distributed over

    @property
    def num_gpus(self) -> int:
        """The number of ranks of the mesh."""
        return self.data_ranks * self.tensor_ranks

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes of the axes by name."""
        sizes = {
            "replicate": self.copies,
            "dp": self.data_ranks // self.copies // self.expert_ranks,
            "ep": self.expert_ranks,
            "tp": self.tensor_ranks,
        }
        return larger(sizes) or {"dp": 1}

    @property
    def mesh_text(self) -> str:
        """The mesh as ``--mesh`` takes it."""
        return mesh_text(self.mesh)


def candidates(
    num_gpus: int,
    batch: int,
    checkpoints: Iterable[str],
    offload: bool = False,
    zero: int = 3,
    is_sequence_parallel: bool = False,
) -> Iterator[Candidate]:
    """The layouts of a number of GPUs, with and without tensor parallelism.

    Args:
        num_gpus: the number of GPUs in the mesh.
        batch: the global batch size of a step.
        checkpoints: the activation checkpointing modes.
        offload: keep shards in CPU memory.
        zero: 3, or 2 to keep gathered parameters.
        is_sequence_parallel: only layouts that split tensors, and sequences along the same axis.
    """
    for tensor_ranks in _powers_of_two(min(MAX_TENSOR_RANKS, num_gpus)):
        data_ranks = num_gpus // tensor_ranks
        if num_gpus % tensor_ranks or batch % data_ranks or (offload and data_ranks == 1):
            continue
        if is_sequence_parallel and tensor_ranks == 1:
            continue
        of_rank = batch // data_ranks
        for checkpoint in checkpoints:
            for micro in _powers_of_two(min(of_rank, MAX_MICRO_BATCH)):
                if of_rank % micro == 0:
                    found = Candidate(data_ranks, tensor_ranks, checkpoint, micro, offload)
                    yield found._replace(zero=zero, is_sequence_parallel=is_sequence_parallel)


def variants(candidate: Candidate) -> Iterator[Candidate]:
    """Variants of a layout that send less and take more memory: gathered parameters kept
    (ZeRO-2), shards inside nodes and replicas between nodes (HSDP), and both.
    """
    if candidate.offload or candidate.data_ranks == 1:
        return
    shards = GPUS_PER_NODE // candidate.tensor_ranks
    copies = [1]
    if shards > 1 and candidate.data_ranks > shards and candidate.data_ranks % shards == 0:
        copies.append(candidate.data_ranks // shards)
    for number in copies:
        for zero in (3, 2):
            found = candidate._replace(copies=number, zero=zero)
            if found != candidate and zero <= candidate.zero:
                yield found


def splits(candidate: Candidate, num_experts: int) -> Iterator[Candidate]:
    """Variants of a layout that split more of the model: sequences along the axis of tensor
    parallelism, and the experts of a mixture among the GPUs of one node.
    """
    if candidate.tensor_ranks > 1 and not candidate.is_sequence_parallel:
        yield candidate._replace(is_sequence_parallel=True)
    if candidate.tensor_ranks == 1 and candidate.copies == 1 and candidate.zero == 3:
        for ranks in _powers_of_two(min(GPUS_PER_NODE, candidate.data_ranks, num_experts)):
            if ranks > 1 and candidate.data_ranks % ranks == 0 and num_experts % ranks == 0:
                yield candidate._replace(expert_ranks=ranks)


def _powers_of_two(largest: int) -> Iterator[int]:
    power = 1
    while power <= largest:
        yield power
        power *= 2
