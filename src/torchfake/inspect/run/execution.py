"""Runs a step on a fake copy: what a program does with a model once.

Input: a fake copy, a step, a storage tracker. Output: the tracker has recorded the whole step.
Invariant: a step holds what a plain training loop would hold, and frees it when that would.
Called by: ``memory`` and ``distributed/run_rank``; ``check`` and ``flops`` for the backward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake._contexts import Restoring, Together
from torchfake._fake_copies import is_or_holds_fake, tensors_held_by
from torchfake._torch import autograd, backends
from torchfake.errors import InputsError
from torchfake.inspect.run.generation import generate
from torchfake.inspect.run.optimizers import optimizer_of
from torchfake.inspect.run.step import Step
from torchfake.inspect.run.storage_tracker import StorageTracker
from torchfake.inspect.run.workload import FakeCopy, tensors_in

Named = list[tuple[str, torch.Tensor]]
"""Tensors, each after the full name of the module that it belongs to."""


def run_step(step: Step, fake_copy: FakeCopy, tracker: StorageTracker) -> None:
    """Run a step, and have the tracker record it."""
    tensors = ModuleTensors(fake_copy.module)
    tracker.register(tensors.parameters, "parameters")
    tracker.register(tensors.buffers, "buffers")
    _set_training(fake_copy.module, step.mode)
    if step.decode is not None:
        with autograd.no_grad(), _autocast(fake_copy, step):
            generate(fake_copy, tracker, *step.decode)
        return
    tracker.register((("", t) for t in tensors_in((fake_copy.args, fake_copy.kwargs))), "inputs")
    if step.mode == "training":
        _train(fake_copy, tracker, step, tensors)
    else:
        _forward(fake_copy, tracker, step)


class ModuleTensors:
    """The parameters and buffers of a module, each with the full name of the module it is in."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters: Named = []
        self.buffers: Named = []
        for name, child in module.named_modules():
            self.parameters += [(name, p) for p in child._parameters.values() if p is not None]
            self.buffers += [(name, b) for b in child._buffers.values() if b is not None]

    def gradients(self) -> Named:
        """The gradients that exist."""
        return [(name, p.grad) for name, p in self.parameters if p.grad is not None]

    def optimizer_state(self, optimizer: Optimizer | None) -> Named:
        """The state of an optimizer, with the names of the modules of its parameters."""
        if optimizer is None:
            return []
        module_of = {id(p): name for name, p in self.parameters}
        return [
            (module_of.get(id(parameter), ""), tensor)
            for parameter, state in optimizer.state.items()
            for tensor in tensors_in(state)
        ]


def _set_training(module: nn.Module, mode: str) -> None:
    """Set the root's training flag as the step needs it; if it is so, no child is changed either:
    children may differ from it on purpose.
    """
    training = module.training if mode == "forward" else mode == "training"
    if module.training != training:
        module.train(training)


def _forward(fake_copy: FakeCopy, tracker: StorageTracker, step: Step) -> None:
    context = autograd.no_grad() if step.mode == "inference" else contextlib.nullcontext()
    with tracker.active(), context:
        tracker.begin_phase("forward")
        with _autocast(fake_copy, step):
            output = fake_copy()
            loss = step.loss(output) if step.loss is not None else None
        tracker.end_forward()
        tracker.end_step()
    del output, loss


def _train(
    fake_copy: FakeCopy, tracker: StorageTracker, step: Step, tensors: ModuleTensors
) -> None:
    """As a plain loop does: ``output`` is alive until the next iteration."""
    for _, parameter in tensors.parameters:
        parameter.grad = None
    optimizer = optimizer_of(step.optimizer, fake_copy)
    # Adagrad has its state from the start, and bitsandbytes' optimizers have tables
    tracker.register(tensors.optimizer_state(optimizer), "optimizer state")
    tracker.register(_tables(optimizer), "optimizer state")
    with tracker.active():
        tracker.begin_phase("forward")
        with _autocast(fake_copy, step):
            output = fake_copy()
            loss = (step.loss or default_loss)(output)
        _check_loss(loss)
        tracker.end_forward()
        tracker.begin_phase("backward")
        run_backward(loss)
        tracker.recategorize(tensors.gradients(), "gradients")
        if optimizer is not None:
            tracker.begin_phase("optimizer")
            optimizer.step()
            tracker.recategorize(tensors.optimizer_state(optimizer), "optimizer state")
        tracker.end_step()
    del output, loss


def _tables(optimizer: Optimizer | None) -> Named:
    """The tensors in attributes of an optimizer's own, which its state may come to refer to."""
    own = {} if optimizer is None else {**vars(optimizer), "param_groups": None}
    return [("", tensor) for tensor in tensors_held_by(own, set())]


def default_loss(output: Any) -> torch.Tensor:
    """``output.loss`` where there is one; else the sum of the first tensor with a gradient."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    for tensor in tensors_in(output):
        if tensor.requires_grad:
            return tensor.sum()
    raise InputsError(
        "no tensor of the output has a gradient, so there is nothing to train: give loss=, a "
        "function of the output, or set requires_grad on the parameters"
    )


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss)
        raise InputsError(f"a loss is a tensor of one number, not {found}: give another loss=")


def run_backward(loss: torch.Tensor) -> None:
    """Run the backward pass of a graph whose leaves are all fake: real leaves would get fake
    gradients.

    Raises:
        InputsError: naming the first real leaf.
    """
    seen, nodes = set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not is_or_holds_fake(leaf):
            raise InputsError(
                f"a real tensor of shape {list(leaf.shape)} that requires a gradient takes part "
                "and is not the module's, so its gradient would be fake: make it a parameter of "
                "the module (a loss's own layers too), or use it under torch.no_grad()"
            )
        nodes += [next_node for next_node, _ in node.next_functions]
    loss.backward()


def _autocast(fake_copy: FakeCopy, step: Step) -> Restoring:
    if step.autocast is None:
        return Together()
    parameter = next(fake_copy.module.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    return backends.autocast(device, step.autocast)
