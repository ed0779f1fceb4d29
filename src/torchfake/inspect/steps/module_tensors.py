"""The parameters and buffers of a module, each with the name of the module that it is in.

Input: a module. Output: named tensors: parameters, buffers, gradients, an optimizer's state.
Invariant: a module's tensors are listed once, in order.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake.inspect.copies.workload import tensors_in
from torchfake.inspect.storages.storage_tracker import StorageTracker
from torchfake.observe import tensors_held_by

Named = list[tuple[str, torch.Tensor]]
"""Tensors, each after the full name of the module that it belongs to."""


class ModuleTensors:
    """The parameters and buffers of a module, each with the full name of the module it is in."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module  # and no tensor, which a step may replace

    @property
    def parameters(self) -> Named:
        """The parameters that it has now."""
        return self._named("_parameters")

    @property
    def buffers(self) -> Named:
        """The buffers that it has now."""
        return self._named("_buffers")

    def _named(self, table: str) -> Named:
        found = []
        for name, child in self._module.named_modules():
            for tensor in getattr(child, table).values():
                if tensor is not None:
                    found.append((name, tensor))
        return found

    def register(self, tracker: StorageTracker) -> None:
        """Tell a tracker of them."""
        tracker.register(self.parameters, "parameters")
        tracker.register(self.buffers, "buffers")

    def gradients(self) -> Named:
        """The gradients that exist."""
        found = []
        for name, parameter in self.parameters:
            gradient = parameter.grad
            if gradient is not None:
                found.append((name, gradient))
        return found

    def optimizer_state(self, optimizer: Optimizer | None) -> Named:
        """The state of an optimizer, with the names of the modules of its parameters."""
        module_of, found = {}, []
        if optimizer is not None:
            for name, parameter in self.parameters:
                module_of[id(parameter)] = name
            for parameter, state in optimizer.state.items():
                for tensor in tensors_in(state):
                    found.append((module_of.get(id(parameter), ""), tensor))
        return found


def tables_of(optimizer: Optimizer | None) -> Named:
    """The tensors in attributes of an optimizer's own, which its state may come to refer to."""
    own = {} if optimizer is None else {**vars(optimizer), "param_groups": None}
    return [("", tensor) for tensor in tensors_held_by(own, set())]
