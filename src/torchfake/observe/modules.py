"""The module that is running, forward or backward.

Input: a module, on which hooks are put. Output: the full name of the innermost running module at
any moment; observers are told when one is entered and left. Invariant: no global hook is
registered; `remove` takes the hooks off.

No module runs in the backward pass; nodes of autograd's graph do. Nodes are numbered as they are
made, so a node belongs to the module that was running when its number was assigned.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from functools import partial
from typing import Any

import torch
from torch import nn

from torchfake._torch import autograd


class RunningModules:
    """The modules that are running, innermost last.

    A module is left when it raises, too. `failure` is then the error's id and the innermost
    module's name, until a module is entered or left without an error. The id, because a reference
    to the error would keep tensors alive.
    """

    def __init__(self, module: nn.Module) -> None:
        self.stack: list[str] = []
        self.failure: tuple[int, str] | None = None
        self.observers: list[Any] = []  # that are told
        self._first_nodes: list[int] = []  # numbers of autograd nodes, ascending
        self._names: list[str] = []  # the module that ran from that node on
        self._hooks: list[Any] = []
        for name, child in module.named_modules():
            enter = child.register_forward_pre_hook(partial(self._enter, name), prepend=True)
            leave = child.register_forward_hook(partial(self._leave, name), always_call=True)
            self._hooks += [enter, leave]

    def remove(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, name: str, module: nn.Module, args: Any) -> None:
        self.stack.append(name)
        self.failure = None
        self._mark(name)
        for observer in self.observers:
            observer.module_entered(name, module)

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        error = sys.exc_info()[1]
        if error is None:
            self.failure = None
        elif self.failure is None or self.failure[0] != id(error):
            self.failure = id(error), name
        for observer in self.observers:
            observer.module_left(name, module)
        while self.stack and self.stack.pop() != name:
            pass
        self._mark(self.stack[-1] if self.stack else "")

    def _mark(self, name: str) -> None:
        """Nodes from here on belong to the module `name`."""
        number = autograd.next_sequence_number()
        if self._first_nodes and self._first_nodes[-1] == number:
            self._names[-1] = name  # the module before made no node
        else:
            self._first_nodes.append(number)
            self._names.append(name)

    @property
    def is_recomputing(self) -> bool:
        """Whether a backward pass runs modules forward again, as checkpointing does."""
        return torch.is_grad_enabled() and autograd.running_sequence_number() is not None

    @property
    def name(self) -> str:
        """The innermost running module; in a backward pass, the module whose forward pass made the
        node that runs. Where a backward pass recomputes, as checkpointing does, modules run again.
        """
        number = autograd.running_sequence_number()
        if number is None or torch.is_grad_enabled():
            return self.stack[-1] if self.stack else ""
        if number >= autograd.FIRST_LEAF_NUMBER:
            return ""
        index = bisect_right(self._first_nodes, number)
        return self._names[index - 1] if index else ""
