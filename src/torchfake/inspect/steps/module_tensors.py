"""The tensors of a module, each with the full name of the submodule that it belongs to.

Input: a module. Output: named tensors: parameters, buffers, gradients, an optimizer's state.
Invariant: the tensors of each submodule are listed once, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, ValuesView

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake.inspect.copies.workload import tensors_in
from torchfake.inspect.storages.storage_tracker import StorageTracker

Named = list[tuple[str, torch.Tensor]]
"""Tensors, each after the full name of the module that it belongs to."""


def named_tensors(module: nn.Module, table: str = "_parameters") -> Named:
    """The current parameters of a module, or the tensors in another table of each submodule."""
    found = []
    for name, child in module.named_modules():
        for tensor in getattr(child, table).values():
            if tensor is not None:
                found.append((name, tensor))
    return found


def register_all(module: nn.Module, tracker: StorageTracker) -> None:
    """Register all parameters and buffers of a module with a tracker."""
    tracker.register(named_tensors(module), "parameters")
    tracker.register(named_tensors(module, "_buffers"), "buffers")


def gradients_of(module: nn.Module) -> Named:
    """The gradients of those parameters that have one."""
    found = []
    for name, parameter in named_tensors(module):
        gradient = parameter.grad
        if gradient is not None:
            found.append((name, gradient))
    return found


def state_of(optimizer: Optimizer | None, module: nn.Module) -> Named:
    """The tensors in an optimizer's state, with the submodule of the parameter they are for."""
    module_of, found = {}, []
    if optimizer is not None:
        for name, parameter in named_tensors(module):
            module_of[id(parameter)] = name
        for each in with_wrapped(optimizer):
            for parameter, state in getattr(each, "state", {}).items():
                for tensor in tensors_in(state):
                    found.append((module_of.get(id(parameter), ""), tensor))
    return found


def with_wrapped(optimizer: Optimizer) -> Iterator[Optimizer]:
    """An optimizer, and those that it holds, such as one for each parameter that is offloaded: it
    may have no state of its own then.
    """
    yield optimizer
    for value in vars(optimizer).values():
        items = value.values() if isinstance(value, dict) else value
        for item in items if isinstance(items, (list, tuple, ValuesView)) else (items,):
            if isinstance(item, Optimizer) and item is not optimizer:
                yield from with_wrapped(item)


def tables_of(optimizer: Optimizer | None) -> Named:
    """The tensors in an optimizer's attributes, such as lookup tables that its state refers to."""
    own = {} if optimizer is None else {**vars(optimizer), "param_groups": None}
    return [("", tensor) for tensor in tensors_in(own)]
