"""What a rank does in training: pipeline schedules, DDP's buckets, ZeroRedundancyOptimizer.

Input: schedules, parameters, optimizers. Output: the stages of this rank, the buckets of DDP, the
parameters that each rank updates. Invariant: nothing is sent; whether something is a schedule or a
``ZeroRedundancyOptimizer`` is answered without an import of either.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch


def pipeline_stages_of(value: Any) -> list[Any] | None:
    """The stages of this rank that a schedule of torch.distributed.pipelining runs; None if `value`
    is no such schedule.
    """
    schedules = sys.modules.get("torch.distributed.pipelining.schedules")
    if schedules is None or not isinstance(value, schedules._PipelineSchedule):
        return None
    of_several = isinstance(value, schedules.PipelineScheduleMulti)
    return list(value._stages) if of_several else [value._stage]


def pipeline_makes_losses(schedule: Any) -> bool:
    """Whether a schedule has a function of the loss, and so goes backward."""
    return schedule._loss_fn is not None


def bucket_assignment(
    tensors: list[torch.Tensor], limits: list[int], indices: list[int] | None
) -> list[list[int]]:
    """Which tensors DDP puts in a bucket together: as many as have so many bytes, in order.

    Args:
        tensors: in the order in which they come.
        limits: the bytes of the first bucket, the next ones, and the last of them of all others.
        indices: what the tensors are named by in the result; their positions, if None. C++ sorts
            the buckets by their first index only in that case.
    """
    import torch.distributed as dist

    sparse = [False] * len(tensors) if indices is None else [False] * (1 + max(indices, default=0))
    assign: Any = dist._compute_bucket_assignment_by_size  # type: ignore[attr-defined]
    found: list[list[int]] = assign(tensors, limits, sparse, indices or [])[0]
    return found


def zero_optimizer_class() -> Any:
    """``ZeroRedundancyOptimizer``. Its package compiles with torch.jit when it is imported, which
    warns since torch 2.13, and cannot be done in a mode.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer


def parts_of_optimizer(optimizer: Any) -> tuple[list[list[torch.Tensor]], list[int]] | None:
    """The parameters that each rank of a group updates, and these ranks; None if `optimizer` is no
    ``ZeroRedundancyOptimizer``.
    """
    import torch.distributed as dist

    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if module is None or not isinstance(optimizer, module.ZeroRedundancyOptimizer):
        return None
    parts: Any = optimizer._partition_parameters()
    return (
        [[param for group in groups for param in group["params"]] for groups in parts],
        dist.get_process_group_ranks(optimizer.process_group),
    )


def flattened(tensors: list[torch.Tensor]) -> torch.Tensor:
    """A copy of dense tensors of one dtype, one after the other, as DDP broadcasts them."""
    flat: torch.Tensor = torch._C._nn.flatten_dense_tensors(tensors)
    return flat


def unflattened(flat: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Views of such a tensor, of the shapes of those that it was made of."""
    return list(torch._C._nn.unflatten_dense_tensors(flat, like))
