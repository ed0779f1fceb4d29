"""The arguments of a call: tensors, containers of them, and whatever else has tensors in it.

Input: arguments. Output: the tensors that they hold; the same arguments with fakes for these.
Invariant: an object or function that has no tensors is passed on as it is; of what was given,
nothing is changed.

A mask of blocks, as flex attention has it, is an object with a function that has tensors in its
closure: they are held as any input is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchfake._tensor.copies import FakeCopies
from torchfake.errors import InputsError
from torchfake.inspect.copied.functions import FunctionCopies
from torchfake.inspect.copied.references import Reached
from torchfake.inspect.describe.messages import one_line


def held_by_arguments(arguments: Any) -> list[torch.Tensor]:
    """The tensors that arguments hold, each once, in order; those of modules are not theirs."""
    found: dict[int, torch.Tensor] = {}
    for leaf in pytree.tree_leaves(arguments):
        held = [] if _is_left_alone(leaf) else Reached(leaf).tensors
        found.update({id(tensor): tensor for tensor in held})
    return list(found.values())


def _is_left_alone(leaf: Any) -> bool:
    return isinstance(leaf, (torch.nn.Module, type))


class ArgumentCopies:
    """Copies of arguments, with the fakes that one :class:`FakeCopies` makes.

    Args:
        fakes: makes the fakes.
        is_ready: whether a tensor is to be passed on as it is.
        memo: copies that there are already, by the identity of the original.
    """

    def __init__(
        self,
        fakes: FakeCopies,
        is_ready: Callable[[torch.Tensor], bool] = lambda tensor: False,
        memo: Mapping[int, Any] | None = None,
    ) -> None:
        self._fakes, self._is_ready = fakes, is_ready
        self._memo = dict(memo or {})

    def of(self, argument: Any) -> Any:
        """A copy of one argument, which may be a container.

        Raises:
            InputsError: if an object that holds tensors cannot be copied.
        """
        return pytree.tree_map(self._of_leaf, argument)

    def _of_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf if self._is_ready(leaf) else self._fakes.of(leaf)
        if _is_left_alone(leaf):
            return leaf
        reached = Reached(leaf)
        if all(map(self._is_ready, reached.tensors)):
            return leaf
        try:
            return self._deep_copy(leaf, reached)
        except Exception as error:
            raise InputsError(
                f"an input is a {type(leaf).__name__} that has tensors in it and cannot be copied "
                f"({one_line(error)}): remove what copy.deepcopy refuses"
            ) from error

    def _deep_copy(self, leaf: Any, reached: Reached) -> Any:
        functions = FunctionCopies(reached.functions)
        memo = {id(value): value for value in reached.kept} | functions.by_id | self._memo
        for tensor in reached.tensors:
            memo[id(tensor)] = tensor if self._is_ready(tensor) else self._fakes.of(tensor)
        functions.fill(lambda value: copy.deepcopy(value, memo))
        return copy.deepcopy(leaf, memo)
