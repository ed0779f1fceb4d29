"""The plain training loop: gradients freed or zeroed, forward, loss, backward, optimizer.

Input: a fake copy, a step, a storage tracker. Output: the tracker has recorded one iteration.
Invariant: tensors are held and freed as in a plain Python loop: ``output`` and ``loss`` are alive
until they are bound again, or the iteration ends.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._torch import backends
from torchfake._torch.contexts import Restoring, Together
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.steps.backward import (
    GIVEN_LOSS,
    check_loss,
    default_loss,
    loss_text,
    run_backward,
)
from torchfake.inspect.steps.module_tensors import gradients_of, register_all, state_of, tables_of
from torchfake.inspect.steps.optimizers import optimizer_of
from torchfake.inspect.steps.step import Step
from torchfake.inspect.storages.storage_tracker import StorageTracker


class PlainLoop:
    """A training loop on a fake copy, one iteration at a time."""

    def __init__(self, step: Step, fake_copy: FakeCopy) -> None:
        self._step, self._copy = step, fake_copy
        for parameter in fake_copy.module.parameters():
            parameter.grad = None
        self._optimizer = optimizer_of(step.optimizer, fake_copy)

    def run(self, tracker: StorageTracker) -> None:
        """Run one iteration; with accumulation, several forward and backward passes."""
        self._register(tracker)
        with tracker.active():
            tracker.phase = "forward"
            self._copy.module.zero_grad(set_to_none=not self._step.keep_gradients)
            output = loss = None
            for _ in range(self._step.accumulate):
                tracker.phase = "forward"
                with self._step.around():
                    with autocast_of(self._copy, self._step):
                        output = self._copy()
                        loss = self._loss_of(output)
                        tracker.loss = loss_text(output) if self._step.loss is None else GIVEN_LOSS
                    check_loss(loss)
                    tracker.end_forward()
                    tracker.phase = "backward"
                    run_backward(loss)
                tracker.recategorize(gradients_of(self._copy.module), "gradients")
            self._update(tracker)
            tracker.end_step()
        del output, loss

    def _register(self, tracker: StorageTracker) -> None:
        """Register the tensors that exist before the iteration. Among them are Adagrad's state,
        which its constructor creates, and the tables of bitsandbytes' optimizers.
        """
        module, held = self._copy.module, self._copy.held_by_inputs
        tracker.optimizer = None if self._optimizer is None else type(self._optimizer).__name__
        register_all(module, tracker)
        tracker.register((("", tensor) for tensor in held), "inputs")
        tracker.register(gradients_of(module), "gradients")
        tracker.register(state_of(self._optimizer, module), "optimizer state")
        tracker.register(tables_of(self._optimizer), "optimizer state")

    def _loss_of(self, output: Any) -> torch.Tensor:
        loss = (self._step.loss or default_loss)(output)
        if self._step.accumulate == 1 or not isinstance(loss, torch.Tensor):
            return loss
        return loss / self._step.accumulate

    def _update(self, tracker: StorageTracker) -> None:
        if self._optimizer is None:
            return
        tracker.phase = "optimizer"
        self._optimizer.step()
        tracker.recategorize(state_of(self._optimizer, self._copy.module), "optimizer state")


def autocast_of(fake_copy: FakeCopy, step: Step) -> Restoring:
    """The autocast context of the forward pass."""
    if step.autocast is None:
        return Together()
    return backends.autocast(fake_copy.device.type, step.autocast)
