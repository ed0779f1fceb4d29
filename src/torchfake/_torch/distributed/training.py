"""Training on one rank: pipeline schedules, DDP's buckets, ZeroRedundancyOptimizer.

Input: schedules, parameters, optimizers. Output: the stages of this rank, the buckets of DDP, the
parameters that each rank updates. Invariant: nothing is sent; whether something is a schedule or a
``ZeroRedundancyOptimizer`` is answered without an import of either.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

_PLAIN = torch.Tensor()  # made here, where no mode is on
_DEVICE = torch._C.TensorBase.device


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
    """Whether a schedule has a loss function, and so runs backward passes."""
    return schedule._loss_fn is not None


def pipeline_start() -> tuple[Any, str] | None:
    """The method, as its class and name, in which the ranks of a pipeline vote on how stages learn
    shapes; None before torch 2.14, where ranks vote by messages to one another in all groups.
    """
    from torch.distributed.pipelining import schedules

    owner: Any = schedules._PipelineSchedule
    if hasattr(owner, "_initialize_pipeline_distributed_state"):  # torch 2.15
        return owner, "_initialize_pipeline_distributed_state"
    return (owner, "_warmup_p2p") if torch.__version__.startswith("2.14.") else None


def voting_alone(original: Any) -> Any:
    """The replacement for :func:`pipeline_start` where other ranks are simulated: torch refuses a
    vote for dynamic shapes there, so each rank follows its own vote.
    """
    from torch.distributed.pipelining import stage

    mode: Any = getattr(stage, "InferenceMode", None)  # torch 2.11 has none

    @functools.wraps(original)
    def replacement(schedule: Any, stages: Any, has_backward: bool, *args: Any, **kw: Any) -> Any:
        needs_dynamic = vars(mode)["needs_dynamic"]
        votes = [mode.needs_dynamic(each._user_meta, has_backward) for each in stages]
        mode.needs_dynamic = lambda *_: False
        try:
            original(schedule, stages, has_backward, *args, **kw)
        finally:
            mode.needs_dynamic = needs_dynamic
        for each in stages:
            each._inference_mode = mode.DYNAMIC if any(votes) else mode.STATIC

    return replacement


def pipeline_outputs() -> tuple[Any, str] | None:
    """The method, as its class and name, that says whether a stage may release an output that it
    has sent; None before torch 2.15, where stages keep their outputs.
    """
    from torch.distributed.pipelining import stage

    name = "_output_slot_is_releasable"
    owner: Any = stage._PipelineStageBase
    return (owner, name) if hasattr(owner, name) else None


def taking_fakes_for_plain(original: Any) -> Any:
    """The replacement for :func:`pipeline_outputs`, which releases fakes like plain tensors."""

    @functools.wraps(original)
    def replacement(stage: Any, output: Any) -> Any:
        is_subclass = isinstance(output, torch.Tensor) and type(output).device is not _DEVICE
        return original(stage, _PLAIN if is_subclass else output)

    return replacement


def bucket_assignment(
    tensors: list[torch.Tensor], limits: list[int], indices: list[int] | None
) -> list[list[int]]:
    """The buckets in which DDP puts tensors, in order, up to a number of bytes each.

    Args:
        tensors: in the order of the buckets.
        limits: bytes of the first bucket, the second, and so on; the last limit is for all others.
        indices: the numbers of the tensors in the result; None: their positions. Only then C++
            sorts the buckets by their first index.
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
    """Views of a flattened tensor, in the shapes of the tensors that it was made of."""
    return list(torch._C._nn.unflatten_dense_tensors(flat, like))


def accumulator_of(leaf: torch.Tensor) -> Any:
    """The node that accumulates a leaf's gradient, always the same one while it is referenced."""
    with torch.enable_grad():
        made: Any = leaf.expand_as(leaf).grad_fn
    return made.next_functions[0][0]


def after_backward(callback: Callable[[], Any]) -> None:
    """Call `callback` when the backward pass that is running ends."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)
