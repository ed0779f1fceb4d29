"""The plain training loop: gradients freed or zeroed, forward, loss, backward, optimizer.

Input: a fake copy, a step, a storage tracker. Output: the tracker has recorded one iteration, or
several, one after the other. Invariant: what such a loop holds is held, and freed when that frees
it: ``output`` and ``loss`` are alive until they are bound again, or the iteration ends.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._torch import backends
from torchfake._torch.contexts import Restoring, Together
from torchfake.inspect.run.backward import check_loss, default_loss, run_backward
from torchfake.inspect.run.module_tensors import ModuleTensors, tables_of
from torchfake.inspect.run.optimizers import optimizer_of
from torchfake.inspect.run.step import Step
from torchfake.inspect.run.storage_tracker import StorageTracker
from torchfake.inspect.run.workload import FakeCopy


class PlainLoop:
    """A training loop on a fake copy, an iteration at a time."""

    def __init__(self, step: Step, fake_copy: FakeCopy) -> None:
        self._step, self._copy = step, fake_copy
        self._tensors = ModuleTensors(fake_copy.module)
        for _, parameter in self._tensors.parameters:
            parameter.grad = None
        self._optimizer = optimizer_of(step.optimizer, fake_copy)

    def run(self, tracker: StorageTracker) -> None:
        """One iteration: with accumulation, several forward and backward passes."""
        self._register(tracker)
        with tracker.active():
            tracker.begin_phase("forward")
            self._copy.module.zero_grad(set_to_none=not self._step.keep_gradients)
            output = loss = None
            for _ in range(self._step.accumulate):
                tracker.begin_phase("forward")
                with self._step.around():
                    with autocast_of(self._copy, self._step):
                        output = self._copy()
                        loss = self._loss_of(output)
                    check_loss(loss)
                    tracker.end_forward()
                    tracker.begin_phase("backward")
                    run_backward(loss)
                tracker.recategorize(self._tensors.gradients(), "gradients")
            self._update(tracker)
            tracker.end_step()
        del output, loss

    def _register(self, tracker: StorageTracker) -> None:
        """What is there before. Adagrad has its state from the start, and bitsandbytes' optimizers
        have tables.
        """
        tensors, held = self._tensors, self._copy.held_by_inputs
        tensors.register(tracker)
        tracker.register((("", tensor) for tensor in held), "inputs")
        tracker.register(tensors.gradients(), "gradients")
        tracker.register(tensors.optimizer_state(self._optimizer), "optimizer state")
        tracker.register(tables_of(self._optimizer), "optimizer state")

    def _loss_of(self, output: Any) -> torch.Tensor:
        loss = (self._step.loss or default_loss)(output)
        if self._step.accumulate == 1 or not isinstance(loss, torch.Tensor):
            return loss
        return loss / self._step.accumulate

    def _update(self, tracker: StorageTracker) -> None:
        if self._optimizer is None:
            return
        tracker.begin_phase("optimizer")
        self._optimizer.step()
        state = self._tensors.optimizer_state(self._optimizer)
        tracker.recategorize(state, "optimizer state")


def autocast_of(fake_copy: FakeCopy, step: Step) -> Restoring:
    """The context of the forward pass."""
    if step.autocast is None:
        return Together()
    return backends.autocast(fake_copy.device.type, step.autocast)
