"""The module that is running, forward or backward.

Input: a module, which gets hooks. Output: the full name of the innermost running module at any
moment; observers are notified when a module is entered and left. Invariant: no global hook is
registered; `remove` removes the hooks.

In the backward pass nodes of autograd's graph run, not modules. Nodes are numbered as they are
created, so a node belongs to the module that was running when its number was assigned.

No hook runs if a module is called by its ``forward``: the frames of the program tell that it runs.
They are read only on demand, since that may keep the locals of such a frame alive until it ends.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from torchfake._torch import autograd


class RunningModules:
    """The modules that are running, innermost last.

    Args:
        module: its modules get hooks.
        sees_direct_calls: whether `name` finds modules too whose ``forward`` is called directly.

    A module is also left when it raises. `failure` is then the error's id and the innermost
    module's name, until a module is entered or left without an error. It holds the id because a
    reference to the error would keep tensors alive.
    """

    def __init__(self, module: nn.Module, *, sees_direct_calls: bool = False) -> None:
        self.stack: list[str] = []
        self.num_entered = 0  # how often a module was entered
        self.failure: tuple[int, str] | None = None
        self.observers: list[Any] = []  # notified when a module is entered or left
        self._direct = DirectCalls(module) if sees_direct_calls else None
        self._first_nodes: list[int] = []  # numbers of autograd nodes, ascending
        self._names: list[str] = []  # the module that ran from that node on
        self._next_node = 0  # the number of the next node, when the name was last asked for
        self._hooks: list[Any] = []
        for name, child in module.named_modules():
            enter = child.register_forward_pre_hook(partial(self._enter, name), prepend=True)
            leave = child.register_forward_hook(partial(self._leave, name), always_call=True)
            self._hooks += [enter, leave]

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, name: str, module: nn.Module, args: Any) -> None:
        self.stack.append(name)
        self.num_entered += 1
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
        """Assign the autograd nodes created from here on to the module `name`."""
        number = self._next_node = autograd.next_sequence_number()
        if self._first_nodes and self._first_nodes[-1] == number:
            self._names[-1] = name  # the module before created no node
        else:
            self._first_nodes.append(number)
            self._names.append(name)

    @property
    def is_recomputing(self) -> bool:
        """Whether a backward pass runs modules forward again, as checkpointing does."""
        return torch.is_grad_enabled() and autograd.running_sequence_number() is not None

    @property
    def name(self) -> str:
        """The innermost running module, also when checkpointing recomputes its forward; otherwise
        in a backward pass, the module whose forward pass created the node that runs.
        """
        number = autograd.running_sequence_number()
        if number is None or torch.is_grad_enabled():
            return self._running()
        if number >= autograd.FIRST_LEAF_NUMBER:
            return ""
        index = bisect_right(self._first_nodes, number)
        return self._names[index - 1] if index else ""

    def _running(self) -> str:
        """The innermost module whose ``forward`` runs, in which the nodes since the last call of
        this function were created.
        """
        name = self.stack[-1] if self.stack else ""
        if self._direct is None:
            return name
        called = self._direct.innermost(name)
        if called not in self.stack:
            name = called
        before, self._next_node = self._next_node, autograd.next_sequence_number()
        if self._names and self._names[-1] != name and self._first_nodes[-1] <= before:
            self._first_nodes.append(before)
            self._names.append(name)
        return name


class DirectCalls:
    """Finds the module whose ``forward`` is running in the frames of this thread."""

    def __init__(self, module: nn.Module) -> None:
        self._names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}  # by the module's id
        self._codes: dict[str, frozenset[CodeType]] = {}  # of the module's forward, by its name
        by_class: dict[type, frozenset[CodeType]] = {}
        for name, child in module.named_modules():
            kind = type(child)
            if kind not in by_class:
                by_class[kind] = frozenset(_forward_codes(kind))
            self._names[id(child)], self._codes[name] = (weakref.ref(child), name), by_class[kind]
        self._all = frozenset(code for codes in by_class.values() for code in codes)

    def innermost(self, entered: str) -> str:
        """The full name of the module that the innermost such frame belongs to.

        Args:
            entered: the name of the innermost module that was entered by a call of the module; also
                the result if no other module's frame is found inside of it.
        """
        frame: FrameType | None = sys._getframe(1)
        own = self._codes.get(entered, frozenset())
        while frame is not None and frame.f_code not in own:
            if frame.f_code in self._all:
                name = self._name_of(frame)
                if name is not None:
                    return name
            frame = frame.f_back
        return entered

    def _name_of(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if not code.co_varnames or not _READS_LOCALS.isdisjoint(code.co_names):
            return None
        first = frame.f_locals.get(code.co_varnames[0])
        if not code.co_argcount and isinstance(first, tuple):  # a wrapper that takes *args
            first = first[0] if first else None
        known = self._names.get(id(first))
        return None if known is None or known[0]() is not first else known[1]


_READS_LOCALS = frozenset({"dir", "eval", "exec", "locals", "vars"})
"""What gives a function its locals as a dict, which changes if a frame's locals are read, before
Python 3.13."""


def _forward_codes(kind: type) -> Iterator[CodeType]:
    """The code of ``forward`` in a class and in its bases, and of what it is a wrapper of."""
    for base in kind.__mro__:
        function = base.__dict__.get("forward")
        while function is not None:
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield code
            function = getattr(function, "__wrapped__", None)
