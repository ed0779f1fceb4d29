"""A fake copy of a program, which is a function of the user that performs a whole step.

Input: a function and its arguments. Output: a :class:`ProgramCopy`, which can be called. Invariant:
objects that are shared in the original are shared in the copy; the original is not changed.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake.errors import InputsError
from torchfake.inspect.copies.functions import FunctionCopies
from torchfake.inspect.copies.references import Reached, hooks_of
from torchfake.inspect.records.messages import one_line
from torchfake.observe import FakeCopies, replace_replicas


class ProgramCopy:
    """A copy of a function and its arguments, with fakes for tensors. Created in a fake mode.

    Args:
        function: the step.
        args: the arguments of `function`.
        device: the device of all copies; None: each tensor's own.

    Raises:
        InputsError: if an object that the function refers to cannot be copied.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], device: torch.device | None
    ) -> None:
        reached = Reached((function, args))
        self._functions = FunctionCopies(reached.functions)
        fakes = FakeCopies(device, known=True)
        for tensor in reached.tensors:
            fakes.of(tensor)
        self._memo = _Memo({**self._functions.by_id, **fakes.by_tensor})
        self._memo.methods = {id(m): m for m in reached.methods}
        self._memo.update({id(value): value for value in reached.kept})
        for optimizer in reached.optimizers:
            self._memo[id(optimizer)] = object.__new__(type(optimizer))
        for optimizer in reached.optimizers:
            self._fill_optimizer(optimizer)
        for _, module in reached.modules:
            replace_replicas(module, self._memo)
        self._functions.fill(self._copy)
        self.function: Callable[..., Any] = self._copy(function)
        self.args: tuple[Any, ...] = tuple(map(self._copy, args))
        self.modules = _named_modules([(n, self._copy(module)) for n, module in reached.modules])
        self.optimizers: list[Optimizer] = [self._memo[id(o)] for o in reached.optimizers]
        for tensor in reached.tensors:
            self._copy_hooks(tensor)
        self._memo.clear()  # it would keep tensors alive that the program frees

    def _fill_optimizer(self, optimizer: Optimizer) -> None:
        """Copy all attributes of an optimizer (``Optimizer.__getstate__`` has only three), except a
        ``step`` that a learning rate scheduler has set, which calls the original optimizer.
        """
        own = {name: value for name, value in vars(optimizer).items() if name != "step"}
        vars(self._memo[id(optimizer)]).update(self._copy(own))

    def _copy_hooks(self, tensor: torch.Tensor) -> None:
        made = self._memo[id(tensor)]
        before, after = hooks_of(tensor)
        for hook in before:
            made.register_hook(self._copy(hook))
        for hook in after:
            made.register_post_accumulate_grad_hook(self._copy(hook))

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that the function currently refers to, or is called with."""
        return Reached((self.function, self.args)).tensors

    def _copy(self, value: Any) -> Any:
        """The copy of an object that the program refers to; code and constants are not copied."""
        if isinstance(value, types.MethodType):
            return types.MethodType(self._copy(value.__func__), self._copy(value.__self__))
        try:
            return copy.deepcopy(value, self._memo)
        except Exception as error:
            within = Reached(value)
            if not (within.tensors or within.modules or hasattr(value, "__next__")):
                return value  # a lock or a logger; sharing an iterator would advance the user's
            raise InputsError(
                f"the step refers to a {type(value).__name__} that cannot be copied "
                f"({one_line(error)}): pass what it returns as an argument of the step instead"
            ) from error

    def __call__(self) -> Any:
        """Run one step."""
        return self.function(*self.args)


class _Memo(dict[int, Any]):
    """The memo of a deep copy that also copies the functions of bound methods.

    ``copy.deepcopy`` of a bound method copies its object only. Its function may refer to the
    original too, as a closure or a ``functools.partial``: torchao sets such an ``extra_repr``.
    """

    methods: dict[int, types.MethodType]  # the methods that the program refers to, by id

    def get(self, key: int, default: Any = None) -> Any:
        if key not in self and key in self.methods:
            method = self.methods[key]
            function: Any = copy.deepcopy(method.__func__, self)
            self.setdefault(key, types.MethodType(function, copy.deepcopy(method.__self__, self)))
        return super().get(key, default)

    def clear(self) -> None:
        super().clear()
        self.methods = {}


def _named_modules(modules: list[tuple[str, nn.Module]]) -> nn.Module:
    """A module whose children are these modules; a single module is returned itself."""
    if len(modules) == 1:
        return modules[0][1]
    parent = nn.Module()
    for i, (name, module) in enumerate(modules):
        is_free = name.isidentifier() and not hasattr(parent, name)
        parent.add_module(name if is_free else f"module_{i}", module)
    return parent
