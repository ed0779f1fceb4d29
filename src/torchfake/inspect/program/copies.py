"""A copy of a program: fakes for tensors, and copies for all that holds them.

Input: a function and its arguments. Output: a :class:`ProgramCopy`, which can be called. Invariant:
what is shared in the original is shared in the copy; nothing of the original is changed.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake._tensor.copies import FakeCopies, replace_replicas
from torchfake.errors import InputsError
from torchfake.inspect.copied.functions import FunctionCopies
from torchfake.inspect.copied.references import Reached, hooks_of
from torchfake.inspect.describe.messages import one_line
from torchfake.inspect.run.optimizers import lbfgs_refused


class ProgramCopy:
    """A function and its arguments, all of whose tensors are fake. Made in a fake mode.

    Args:
        function: the step.
        args: that it is called with.
        device: where all tensors are to be; where they are, if None.

    Raises:
        InputsError: if something that it refers to cannot be copied.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], device: torch.device | None
    ) -> None:
        reached = Reached((function, args))
        self._functions = FunctionCopies(reached.functions)
        fakes = FakeCopies(device, known=True)
        for tensor in reached.tensors:
            fakes.of(tensor)
        self._memo: dict[int, Any] = {**self._functions.by_id, **fakes.by_tensor}
        self._memo.update({id(value): value for value in reached.kept})
        _check_optimizers(reached.optimizers)
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
        self._memo.clear()  # it would keep alive what the program lets go of

    def _fill_optimizer(self, optimizer: Optimizer) -> None:
        """All its attributes, of which ``Optimizer.__getstate__`` has three. Its ``step`` is not
        copied if a scheduler has replaced it: that one calls the original.
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
        """The tensors that it refers to now, or is called with."""
        return Reached((self.function, self.args)).tensors

    def _copy(self, value: Any) -> Any:
        """The copy of what the program refers to; of code and constants, the same."""
        if isinstance(value, types.MethodType):
            return types.MethodType(self._copy(value.__func__), self._copy(value.__self__))
        try:
            return copy.deepcopy(value, self._memo)
        except Exception as error:
            within = Reached(value)
            if not (within.tensors or within.modules or hasattr(value, "__next__")):
                return value  # a lock, a logger; what is read from would be further on
            raise InputsError(
                f"the step refers to a {type(value).__name__} that cannot be copied "
                f"({one_line(error)}): pass what it returns as an argument of the step instead"
            ) from error

    def __call__(self) -> Any:
        """One step."""
        return self.function(*self.args)


def _check_optimizers(optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InputsError(lbfgs_refused(optimizer))


def _named_modules(modules: list[tuple[str, nn.Module]]) -> nn.Module:
    """A module that has these as children, or the only one."""
    if len(modules) == 1:
        return modules[0][1]
    parent = nn.Module()
    for i, (name, module) in enumerate(modules):
        is_free = name.isidentifier() and not hasattr(parent, name)
        parent.add_module(name if is_free else f"module_{i}", module)
    return parent
