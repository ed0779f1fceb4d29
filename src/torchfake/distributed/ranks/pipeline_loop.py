"""A training loop around the ``step`` of a pipeline's schedule.

Input: a schedule of torch.distributed.pipelining on fakes, the batch of a rank. Output: a tracker
has recorded one iteration: torch's own schedule, then the optimizer. Invariant: the rank of the
first stage is given the inputs, that of the last the target and a list for the losses; arguments
by name go to all.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from torchfake._torch.distributed import training
from torchfake.errors import InputsError
from torchfake.inspect.copies.arguments import held_by_arguments
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.steps.module_tensors import ModuleTensors
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
        """The module of the stage; of several, one that has them all."""
        parts = [stage.submod for stage in self.stages]
        if len(parts) == 1:
            return parts[0]  # type: ignore[no-any-return]
        named = zip(self.stages, parts, strict=True)
        return nn.ModuleDict({f"stage{stage.stage_index}": part for stage, part in named})


def pipeline_of(value: Any) -> Pipeline | None:
    """The pipeline that a schedule runs; None if `value` is none."""
    stages = training.pipeline_stages_of(value)
    return None if stages is None else Pipeline(value, stages)


def check_pipeline_step(schedule: Any, step: Step) -> None:
    """Refuse options of a step that a schedule has of its own.

    Raises:
        InputsError: naming the option.
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
    """A training loop on the stages of a rank, an iteration at a time."""

    def __init__(self, step: Step, fake_copy: FakeCopy, pipeline: Pipeline, target: Any) -> None:
        self._step, self._copy, self._target = step, fake_copy, target
        self._schedule, self._stages = pipeline.schedule, pipeline.stages
        self._tensors = ModuleTensors(fake_copy.module)
        for _, parameter in self._tensors.parameters:
            parameter.grad = None
        self._optimizer = optimizer_of(step.optimizer, fake_copy)
        self._tracker: StorageTracker | None = None
        for stage in self._stages:
            self._observe(stage)

    def run(self, tracker: StorageTracker, before: StorageTracker | None = None) -> None:
        """One iteration.

        Args:
            tracker: records it.
            before: has recorded the one before, and is finished: what that has left, as the
                buffers to receive into, is there from the beginning.
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
            tracker.recategorize(self._tensors.gradients(), "gradients")
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
        tensors = self._tensors
        tensors.register(tracker)
        held = held_by_arguments((self._copy.args, self._copy.kwargs, self._target))
        tracker.register((("", tensor) for tensor in held), "inputs")
        tracker.register(tensors.gradients(), "gradients")
        tracker.register(tensors.optimizer_state(self._optimizer), "optimizer state")

    def _update(self, tracker: StorageTracker) -> None:
        if self._optimizer is None:
            return
        tracker.phase = "optimizer"
        self._optimizer.step()
        state = self._tensors.optimizer_state(self._optimizer)
        tracker.recategorize(state, "optimizer state")

    def _observe(self, stage: Any) -> None:
        """Have the chunks of a stage begin the phases of the tracker."""
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
                self._tracker.recategorize(self._tensors.gradients(), "gradients")
            return result

        return backward

    def _begin(self, phase: str) -> None:
        if self._tracker is not None:
            self._tracker.phase = phase
