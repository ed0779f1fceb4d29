"""The arguments of a call: tensors, containers of tensors, and other objects that hold tensors.

Input: arguments. Output: the tensors that they hold; copies of the arguments with fakes in place of
the tensors. Invariant: an object or function that holds no tensors is passed on without a copy; the
user's arguments are not changed.

Tensors in closures count as held: the block mask of flex attention is an object with a function
that has tensors in its closure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchfake.errors import InputsError
from torchfake.inspect.copies.functions import FunctionCopies
from torchfake.inspect.copies.references import Reached
from torchfake.inspect.records.messages import one_line
from torchfake.observe import FakeCopies


def held_by_arguments(arguments: Any) -> list[torch.Tensor]:
    """The tensors that arguments hold, each once, in order; tensors of modules are not included."""
    found: dict[int, torch.Tensor] = {}
    for leaf in pytree.tree_leaves(arguments):
        if isinstance(leaf, torch.Tensor):
            found[id(leaf)] = leaf
        elif not isinstance(leaf, _LEFT_ALONE):
            for tensor in Reached(leaf).tensors:
                found[id(tensor)] = tensor
    return list(found.values())


_LEFT_ALONE = (torch.nn.Module, type)
"""Arguments of these types are passed on without a copy."""


class ArgumentCopies:
    """Copies arguments, with fakes in place of tensors.

    Args:
        fakes: creates the fakes.
        is_ready: whether a tensor is passed on without a copy.
        memo: copies that exist already, by the id of the original.
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
        if isinstance(leaf, _LEFT_ALONE):
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

    def of_function(self, function: Any) -> Any:
        """A copy of a function of the user, or of an object that is called, that refers to copies
        of the tensors that it refers to. It is passed on itself if it cannot be copied. Tensors
        that require gradients stay what they are, unless they are copied already: who owns them is
        not known here.
        """
        is_ready, known = self._is_ready, self._fakes.by_tensor
        self._is_ready = lambda t: is_ready(t) or (t.requires_grad and id(t) not in known)
        try:
            reached = Reached(function)
            if all(map(self._is_ready, reached.tensors)):
                return function
            return self._deep_copy(function, reached)
        except Exception:  # whatever copy.deepcopy meets in the user's objects
            return function
        finally:
            self._is_ready = is_ready

    def _deep_copy(self, leaf: Any, reached: Reached) -> Any:
        functions = FunctionCopies(reached.functions)
        memo = {id(value): value for value in reached.kept} | functions.by_id | self._memo
        for tensor in reached.tensors:
            memo[id(tensor)] = tensor if self._is_ready(tensor) else self._fakes.of(tensor)
        functions.fill(lambda value: copy.deepcopy(value, memo))
        return copy.deepcopy(leaf, memo)
