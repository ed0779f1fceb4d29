"""The peaks of a plan at other sizes of its inputs, for ``fit``.

Input: a plan, the quantity that varies, a GPU. Output: peaks of reserved memory by size. Invariant:
each peak comes from planning again, with the same model, mesh and step; it is the highest of all
ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from torchfake._core.gpu_profiles import AlikeGpus, CudaProfile
from torchfake.distributed.plan import Plan, plan_of
from torchfake.distributed.ranks.run_rank import Job
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.errors import InputsError, TorchFakeError
from torchfake.inspect.copies.workload import Workload
from torchfake.inspect.inputs.resizing import BATCH, resized
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.peaks import Peaks, peaks_of


class PlanPeaks(Peaks):
    """Peaks of the ranks of a plan, by kind of GPU and by the size of a rank's inputs."""

    def __init__(
        self,
        plan: Plan,
        vary: str | None,
        reserved_bytes: int | None,
        gpus: Iterable[CudaProfile],
        micro_batches: int = 0,
    ) -> None:
        if plan.gpu is None or plan.job is None:
            raise InputsError(
                f"the plan is for ranks on {plan.device}, without GPUs that it could fit on: plan "
                'it without device="cpu", for a gpu= such as "h100-80gb"'
            )
        reserved_bytes = plan.reserved_bytes if reserved_bytes is None else reserved_bytes
        super().__init__(plan.estimate, vary, reserved_bytes, gpus)
        self._job, self._plan = replace(plan.job, is_timed=False), plan
        layout = plan.layout
        self.mesh = None if layout.num_ranks == 1 else f"{layout.num_ranks} ranks: {layout.text}"
        self.measured(plan.gpu)[self.current_size()] = plan
        self._unit = 1  # sizes are multiples of it: micro-batches of a pipeline have equal sizes
        if plan.job.target is not None and vary == BATCH:
            self._unit = micro_batches or self.current_size() or 1

    def current_size(self) -> int | None:
        known = None if self.vary is None else getattr(self._job.inputs, self.vary, None)
        if isinstance(known, int):
            return known
        try:
            return super().current_size()
        except InputsError as error:
            raise InputsError(
                f"{error}; or give plan a function, inputs=lambda {self.vary}=...: (...)"
            ) from None

    def shown(self, gpu: CudaProfile, size: int | None) -> Estimate:
        """The estimate of the rank with the highest peak, without a time: it waits for others."""
        return replace(super().shown(gpu, size), commands=())

    def estimates(self, found: Plan) -> list[Estimate]:
        return [ranks.estimate for ranks in found.by_ranks]

    def _run(self, gpu: CudaProfile, size: int | None, alike: AlikeGpus) -> Plan | None:
        job = replace(self._job, gpu=gpu, alike=alike)
        size = None if size is None else -(-size // self._unit) * self._unit
        if size is not None and self.vary is not None and size != self.current_size():
            job = replace(
                job,
                inputs=_inputs_of(job.inputs, job, self.vary, size),
                target=_target_of(job, self.vary, size),
            )
        try:
            return plan_of(job, self.reserved_bytes)
        except InputsError as error:
            if error.__cause__ is None or isinstance(error.__cause__, TorchFakeError):
                raise
            self.failures[size] = error  # the program fails at this size
            return None


def _target_of(job: Job, vary: str, size: int) -> Any:
    """The target of a pipeline's loss at another size; unchanged if no dimension varies."""
    if job.target is None:
        return None
    made = _inputs_of(job.target, job, vary, size)
    return partial(_target_made, made, job) if callable(made) else made


def _target_made(make: Any, job: Job) -> Any:
    """Call the function of a target, and return its result, without a tuple around one tensor."""
    try:
        made = make()
    except InputsError:  # the target does not have the size that varies
        return job.target() if callable(job.target) else job.target
    return made[0] if isinstance(made, tuple) and len(made) == 1 else made


def _inputs_of(inputs: Any, job: Job, vary: str, size: int) -> Any:
    """The inputs of a rank at another size, from a function that takes the size, or resized."""
    if hasattr(inputs, "resized"):  # a result of example_inputs
        return inputs.resized(**{vary: size})
    if not callable(inputs) or isinstance(inputs, (torch.Tensor, Mapping)):
        return partial(_resized, inputs, job, vary, size)
    if vary in parameters_of(inputs):
        return partial(inputs, **{vary: size})
    return lambda: _resized(inputs(), job, vary, size)


def parameters_of(function: Any) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # a class or function in C has no signature
        return {}


def _resized(inputs: Any, job: Job, vary: str, size: int) -> Any:
    """The inputs with another size: dimensions of the size that varies are repeated or sliced."""
    is_named = isinstance(inputs, Mapping)
    args = () if is_named else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    kwargs = inputs if is_named else {}
    given = Workload(nn.Module(), tuple(args), kwargs, device=job.device, gpu=job.gpu)
    found = resized(given, vary, size)
    return dict(found.kwargs) if is_named else found.args


@peaks_of.register
def _(
    plan: Plan, vary: str | None, reserved_bytes: int | None, gpus: Iterable[CudaProfile]
) -> Peaks:
    return PlanPeaks(plan, vary, reserved_bytes, gpus)


@peaks_of.register
def _(
    planned: TargetPlan, vary: str | None, reserved_bytes: int | None, gpus: Iterable[CudaProfile]
) -> Peaks:
    return PlanPeaks(planned.plan, vary, reserved_bytes, gpus, planned.batch.accumulate)
