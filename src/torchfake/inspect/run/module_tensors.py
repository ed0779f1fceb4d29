"""The parameters and buffers of a module, each with the name of the module that it is in.

Input: a module. Output: named tensors: parameters, buffers, gradients, an optimizer's state.
Invariant: a module's tensors are listed once, in order.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake._tensor.copies import tensors_held_by
from torchfake.inspect.run.storage_tracker import StorageTracker
from torchfake.inspect.run.workload import tensors_in

Named = list[tuple[str, torch.Tensor]]
"""Tensors, each after the full name of the module that it belongs to."""


class ModuleTensors:
    """The parameters and buffers of a module, each with the full name of the module it is in."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module  # and no tensor, which a step may replace

    @property
    def parameters(self) -> Named:
        """Those that it has now."""
        children = self._module.named_modules()
        return [(n, p) for n, c in children for p in c._parameters.values() if p is not None]

    @property
    def buffers(self) -> Named:
        """The same for buffers."""
        children = self._module.named_modules()
        return [(n, b) for n, c in children for b in c._buffers.values() if b is not None]

    def register(self, tracker: StorageTracker) -> None:
        """Tell a tracker of them."""
        tracker.register(self.parameters, "parameters")
        tracker.register(self.buffers, "buffers")

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


def tables_of(optimizer: Optimizer | None) -> Named:
    """The tensors in attributes of an optimizer's own, which its state may come to refer to."""
    own = {} if optimizer is None else {**vars(optimizer), "param_groups": None}
    return [("", tensor) for tensor in tensors_held_by(own, set())]
