"""A training loop around the ``step`` of a pipeline's schedule.

Input: a schedule of torch.distributed.pipelining on fakes, the batch of a rank. Output: a tracker
that has recorded one iteration: torch's own schedule, then the optimizer. Invariant: the rank of
the first stage gets the inputs, the rank of the last stage the target and a list for the losses;
keyword arguments go to all ranks.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from torchfake._torch.distributed import training
from torchfake.errors import InputsError
from torchfake.inspect.copies.arguments import held_by_arguments
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.steps.module_tensors import gradients_of, register_all, state_of
from torchfake.inspect.steps.optimizers import optimizer_of
from torchfake.inspect.steps.step import Step
from torchfake.inspect.steps.training import autocast_of
from torchfake.inspect.storages.storage_tracker import StorageTracker
from torchfake.observe import Patch, Patched


class Pipeline:
    """The stages of one rank, and the schedule that runs them."""

    def __init__(self, schedule: Any, stages: list[Any]) -> None:
        self.schedule, self.stages = schedule, stages

    @property
    def module(self) -> nn.Module:
        """The module of the stage; if there are several stages, one module that has them all."""
        parts = [stage.submod for stage in self.stages]
        if len(parts) == 1:
            return parts[0]  # type: ignore[no-any-return]
        named = zip(self.stages, parts, strict=True)
        return nn.ModuleDict({f"stage{stage.stage_index}": part for stage, part in named})


def pipeline_of(value: Any) -> Pipeline | None:
    """The pipeline that a schedule runs; None if `value` is not a schedule."""
    stages = training.pipeline_stages_of(value)
    return None if stages is None else Pipeline(value, stages)


def check_pipeline_step(schedule: Any, step: Step) -> None:
    """Check that a step has no options that a pipeline schedule handles itself.

    Raises:
        InputsError: if it has; the message names the option.
    """
    name = type(schedule).__name__
    if step.accumulate != 1:
        raise InputsError(
            f"accumulate={step.accumulate} and a pipeline: its micro-batches are what is "
            f"accumulated; give them to {name}(..., n_microbatches=...)"
        )
    if step.loss is not None:
        raise InputsError(f"loss= and a pipeline: give it to {name}(..., loss_fn=...)")
    if step.mode != "training" or not training.pipeline_makes_losses(schedule):
        raise InputsError(
            f"a pipeline is planned in training: give plan an optimizer, or mode='training', and "
            f"{name} a loss_fn"
        )


class PipelineLoop:
    """A training loop on the stages of a rank, run one iteration at a time."""

    def __init__(self, step: Step, fake_copy: FakeCopy, pipeline: Pipeline, target: Any) -> None:
        self._step, self._copy, self._target = step, fake_copy, target
        self._schedule, self._stages = pipeline.schedule, pipeline.stages
        for parameter in fake_copy.module.parameters():
            parameter.grad = None
        self._optimizer = optimizer_of(step.optimizer, fake_copy)
        self._tracker: StorageTracker | None = None
        for stage in self._stages:
            self._observe(stage)

    def run(self, tracker: StorageTracker, before: StorageTracker | None = None) -> None:
        """Run one iteration.

        Args:
            tracker: records the iteration.
            before: the finished tracker of the previous iteration. Memory that this iteration has
                left, such as receive buffers, exists from the beginning.
        """
        self._register(tracker)
        if before is not None:
            tracker.register_survivors(before)
        self._tracker = tracker
        losses: list[Any] = []
        with tracker.active():
            tracker.phase = "forward"
            self._copy.module.zero_grad(set_to_none=not self._step.keep_gradients)
            with self._step.around(), autocast_of(self._copy, self._step):
                self._run_schedule(losses)
            tracker.recategorize(gradients_of(self._copy.module), "gradients")
            self._update(tracker)
            tracker.end_step()
        self._tracker = None
        del losses

    def _run_schedule(self, losses: list[Any]) -> None:
        given: dict[str, Any] = dict(self._copy.kwargs)
        if any(stage.is_last for stage in self._stages):
            given |= {"target": self._target, "losses": losses}
        is_first = any(stage.is_first for stage in self._stages)
        if "return_outputs" in inspect.signature(self._schedule.step).parameters:
            given["return_outputs"] = False
        replaced = (
            (training.pipeline_start(), training.voting_alone),
            (training.pipeline_outputs(), training.taking_fakes_for_plain),
        )
        with Patched([Patch(*owned, make) for owned, make in replaced if owned is not None]):
            self._schedule.step(*(self._copy.args if is_first else ()), **given)

    def _register(self, tracker: StorageTracker) -> None:
        """Register the tensors that exist before the iteration."""
        module = self._copy.module
        register_all(module, tracker)
        held = held_by_arguments((self._copy.args, self._copy.kwargs, self._target))
        tracker.register((("", tensor) for tensor in held), "inputs")
        tracker.register(gradients_of(module), "gradients")
        tracker.register(state_of(self._optimizer, module), "optimizer state")

    def _update(self, tracker: StorageTracker) -> None:
        if self._optimizer is None:
            return
        tracker.phase = "optimizer"
        self._optimizer.step()
        tracker.recategorize(state_of(self._optimizer, self._copy.module), "optimizer state")

    def _observe(self, stage: Any) -> None:
        """Wrap the methods of a stage, so that each chunk begins a phase of the tracker."""
        forward = stage.forward_one_chunk

        def forward_one_chunk(*args: Any, **kwargs: Any) -> Any:
            self._begin("forward")
            output = forward(*args, **kwargs)
            if self._tracker is not None:
                self._tracker.end_forward()
            return output

        stage.forward_one_chunk = forward_one_chunk
        for name in ("backward_one_chunk", "backward_weight_one_chunk"):
            setattr(stage, name, self._backward(getattr(stage, name)))

    def _backward(self, original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._begin("backward")
            result = original(*args, **kwargs)
            if self._tracker is not None:
                self._tracker.recategorize(gradients_of(self._copy.module), "gradients")
            return result

        return backward

    def _begin(self, phase: str) -> None:
        if self._tracker is not None:
            self._tracker.phase = phase
