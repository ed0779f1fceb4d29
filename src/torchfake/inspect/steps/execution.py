"""Runs a step on a fake copy.

Input: a fake copy, a step, a storage tracker. Output: the tracker has recorded the whole step.
Invariant: a step holds the tensors that a plain training loop holds, and frees them when it does.
"""

from __future__ import annotations

import contextlib

from torch import nn

from torchfake._torch import autograd
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.steps.generation import generate
from torchfake.inspect.steps.module_tensors import register_all
from torchfake.inspect.steps.step import Step
from torchfake.inspect.steps.trainer_loop import TrainerLoop
from torchfake.inspect.steps.training import PlainLoop, autocast_of
from torchfake.inspect.storages.storage_tracker import StorageTracker


def run_step(
    step: Step,
    fake_copy: FakeCopy,
    tracker: StorageTracker,
    first: StorageTracker | None = None,
) -> None:
    """Run a step, and have the tracker record it.

    Args:
        step: the step to run.
        fake_copy: the module and inputs to run it with.
        tracker: records the step; with `first`, the second step.
        first: records the first step, if later steps differ: they find gradients that are kept.
    """
    set_training(fake_copy.module, step.mode)
    if step.mode == "training":
        loop: PlainLoop | TrainerLoop = (
            PlainLoop(step, fake_copy)
            if step.training is None
            else TrainerLoop(step.training, fake_copy)
        )
        if first is not None:
            loop.run(first)
        loop.run(tracker)
        return
    register_all(fake_copy.module, tracker)
    if step.decode is not None:
        with autograd.no_grad(), autocast_of(fake_copy, step):
            generate(fake_copy, tracker, *step.decode)
        return
    tracker.register((("", tensor) for tensor in fake_copy.held_by_inputs), "inputs")
    _forward(fake_copy, tracker, step)


def set_training(module: nn.Module, mode: str) -> None:
    """Set the training flag of a module as `mode` needs it. If the root's flag is right, children
    are not changed either: theirs may differ on purpose.
    """
    training = module.training if mode == "forward" else mode == "training"
    if module.training != training:
        module.train(training)


def _forward(fake_copy: FakeCopy, tracker: StorageTracker, step: Step) -> None:
    context = autograd.no_grad() if step.mode == "inference" else contextlib.nullcontext()
    with tracker.active(), context:
        tracker.phase = "forward"
        with autocast_of(fake_copy, step):
            output = fake_copy()
            loss = step.loss(output) if step.loss is not None else None
        tracker.end_forward()
        tracker.end_step()
    del output, loss
