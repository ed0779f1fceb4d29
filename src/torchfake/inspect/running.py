"""Which module is running, forward or backward.

Enters: a twin of a module, whose hooks are ours. Leaves: the full name of the innermost module at
any moment. Invariant: nothing global is hooked; the module that was given has no hook.

In the backward pass no module runs. What does is a node of autograd's graph; nodes are numbered as
they are made, so the module that was running when its number was given is the module it is of.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from functools import partial
from typing import Any

import torch
from torch import nn

from torchfake import _private


class Running:
    """The modules that are running, innermost last.

    A module is left when it raises, too. `failure` is then the error's id and the innermost
    module's name, until a module is entered or left in peace: an error that is kept would keep
    tensors alive.
    """

    def __init__(self, module: nn.Module) -> None:
        self.stack: list[str] = []
        self.failure: tuple[int, str] | None = None
        self._numbers: list[int] = []  # of the first node made since the name beside it was current
        self._names: list[str] = []
        for name, part in module.named_modules():
            part.register_forward_pre_hook(partial(self._entered, name), prepend=True)
            part.register_forward_hook(partial(self._left, name), always_call=True)

    def _entered(self, name: str, module: nn.Module, args: Any) -> None:
        self.stack.append(name)
        self.failure = None
        self._mark(name)

    def _left(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        error = sys.exc_info()[1]
        if error is None:
            self.failure = None
        elif self.failure is None or self.failure[0] != id(error):
            self.failure = id(error), name
        while self.stack and self.stack.pop() != name:
            pass
        self._mark(self.stack[-1] if self.stack else "")

    def _mark(self, name: str) -> None:
        number = _private.next_node_number()
        if self._numbers and self._numbers[-1] == number:
            self._names[-1] = name  # the module before made no node
        else:
            self._numbers.append(number)
            self._names.append(name)

    @property
    def is_recomputing(self) -> bool:
        """Whether a backward pass runs modules forward again, as checkpointing does."""
        return torch.is_grad_enabled() and _private.running_node_number() is not None

    @property
    def name(self) -> str:
        """The innermost module that is running; in a backward pass, the one whose is going back.

        Where that computes something anew, as checkpointing does, modules run again.
        """
        number = _private.running_node_number()
        if number is not None and not torch.is_grad_enabled():
            return self._name_of_node(number)
        return self.stack[-1] if self.stack else ""

    def _name_of_node(self, number: int) -> str:
        place = 0 if number >= _private.LEAF_NODES else bisect_right(self._numbers, number)
        return self._names[place - 1] if place else ""
