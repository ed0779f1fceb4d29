"""Runs a step on a fake copy: what a program does with a model once.

Input: a fake copy, a step, a storage tracker. Output: the tracker has recorded the whole step.
Invariant: a step holds what a plain training loop would hold, and frees it when that would.
"""

from __future__ import annotations

import contextlib

from torch import nn

from torchfake._torch import autograd
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.steps.generation import generate
from torchfake.inspect.steps.module_tensors import ModuleTensors
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
        step: what is done.
        fake_copy: with what.
        tracker: of the step; of the second one, if there is a tracker of the first.
        first: the tracker of a step before it, if that is another, see :func:`is_first_another`.
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
    tensors = ModuleTensors(fake_copy.module)
    tensors.register(tracker)
    if step.decode is not None:
        with autograd.no_grad(), autocast_of(fake_copy, step):
            generate(fake_copy, tracker, *step.decode)
        return
    tracker.register((("", tensor) for tensor in fake_copy.held_by_inputs), "inputs")
    _forward(fake_copy, tracker, step)


def is_first_another(step: Step) -> bool:
    """Whether later steps find more than an optimizer's state: the gradients of the step before."""
    return step.keep_gradients and step.mode == "training"


def set_training(module: nn.Module, mode: str) -> None:
    """Set the root's training flag as the step needs it; if it is so, no child is changed either:
    children may differ from it on purpose.
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
