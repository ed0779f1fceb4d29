"""The steps that memory is estimated for: what a program does with a model once.

Enters: a twin, a ledger, what to train it with. Leaves: books of a step that has been run, whole.
Invariant: a step holds what a plain loop would hold, and lets go when it would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake._private_distributed import held_by
from torchfake._tensor import FakeTensor
from torchfake.errors import InputsError
from torchfake.inspect.generation import generate
from torchfake.inspect.ledger import Ledger
from torchfake.inspect.optimizers import optimizer_of
from torchfake.inspect.subject import Twin, tensors_in

Loss = Callable[[Any], torch.Tensor]
Named = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Step:
    """What is done with a module, beside its inputs."""

    mode: str  # "training", "forward", "inference" or "generation"
    optimizer: Any = None
    loss: Loss | None = None
    autocast: torch.dtype | None = None
    decode: tuple[int, int] | None = None  # tokens in the prompt, and new ones
    round_to: int | None = None  # bytes; as the device has it, if None
    workspace_bytes: int | None = None  # the same

    def run(self, twin: Twin, ledger: Ledger) -> None:
        """Run it on a twin, and keep the books of it."""
        named = Owners(twin.module)
        ledger.enter(named.parameters, "parameters")
        ledger.enter(named.buffers, "buffers")
        _set_training(twin.module, self.mode)
        if self.decode is not None:
            with torch.no_grad(), _autocast(twin, self):
                generate(twin, ledger, *self.decode)
            return
        ledger.enter((("", t) for t in tensors_in((twin.args, twin.kwargs))), "inputs")
        if self.mode == "training":
            _train(twin, ledger, self, named)
        else:
            _forward(twin, ledger, self)


class Owners:
    """The parameters and buffers of a module beside the full name of the module they are in."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters: Named = []
        self.buffers: Named = []
        for name, part in module.named_modules():
            self.parameters += [(name, p) for p in part._parameters.values() if p is not None]
            self.buffers += [(name, b) for b in part._buffers.values() if b is not None]

    def gradients(self) -> Named:
        """The gradients there are."""
        return [(name, p.grad) for name, p in self.parameters if p.grad is not None]

    def state(self, optimizer: Optimizer | None) -> Named:
        """The state of an optimizer, by the modules of the parameters."""
        if optimizer is None:
            return []
        owner = {id(p): name for name, p in self.parameters}
        return [
            (owner.get(id(parameter), ""), tensor)
            for parameter, state in optimizer.state.items()
            for tensor in tensors_in(state)
        ]


def _set_training(module: nn.Module, mode: str) -> None:
    """As the step needs it, unless it is so: parts that were set apart stay as they are."""
    wanted = module.training if mode == "forward" else mode == "training"
    if module.training != wanted:
        module.train(wanted)


def _forward(twin: Twin, ledger: Ledger, step: Step) -> None:
    context = torch.no_grad() if step.mode == "inference" else contextlib.nullcontext()
    with ledger.open(), context:
        ledger.begin("forward")
        with _autocast(twin, step):
            output = twin()
            loss = step.loss(output) if step.loss is not None else None
        ledger.end_of_forward()
        ledger.over()
    del output, loss


def _train(twin: Twin, ledger: Ledger, step: Step, named: Owners) -> None:
    """As a plain loop does it: ``output`` lives until the loop's next turn."""
    for _, parameter in named.parameters:
        parameter.grad = None
    optimizer = optimizer_of(step.optimizer, twin)
    ledger.enter(named.state(optimizer), "optimizer state")  # Adagrad has it from the start
    with ledger.open():
        ledger.begin("forward")
        with _autocast(twin, step):
            output = twin()
            loss = (step.loss or default_loss)(output)
        _check_loss(loss)
        ledger.end_of_forward()
        ledger.begin("backward")
        run_backward(loss)
        ledger.reassign(named.gradients(), "gradients")
        if optimizer is not None:
            ledger.begin("optimizer")
            optimizer.step()
            ledger.reassign(named.state(optimizer), "optimizer state")
        ledger.over()
    del output, loss


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
    """The backward pass, of a graph whose leaves are all fake: real ones would be given fake
    gradients.

    Raises:
        InputsError: naming the first.
    """
    seen, nodes = set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not isinstance(held_by(leaf), FakeTensor):
            raise InputsError(
                f"a real tensor of shape {list(leaf.shape)} that requires a gradient takes part "
                "and is not the module's, so its gradient would be fake: make it a parameter of "
                "the module (a loss's own layers too), or use it under torch.no_grad()"
            )
        nodes += [below for below, _ in node.next_functions]
    loss.backward()


@contextlib.contextmanager
def _autocast(twin: Twin, step: Step) -> Iterator[None]:
    if step.autocast is None:
        yield
        return
    parameter = next(twin.module.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    with torch.autocast(device, dtype=step.autocast):
        yield
