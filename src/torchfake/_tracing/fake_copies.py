"""Fake copies of modules and inputs, one kind for each tracer.

Input: a module, a function or a tree of inputs. Output: copies for ``make_fx`` and shape
propagation (torchfake's fakes), for ``symbolic_trace`` (parameters shared, buffers copied) and for
``torch.export`` (torch's own fakes). Invariant: whatever is done to a copy, the original module
does not change.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchfake._patches.entry import without_modes
from torchfake._tensor.copies import FakeCopies, all_tensors
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._tracing.captured_tensors import CapturedTensors
from torchfake._tracing.torch_fakes import TorchFakes
from torchfake.errors import TraceError
from torchfake.fake import fake_like


def _copied(module: nn.Module, copy_module: Callable[[], nn.Module]) -> nn.Module:
    """Call `copy_module` outside modes, so that copies of real tensors are real."""
    try:
        with without_modes():
            return copy_module()
    except Exception as error:
        raise TraceError(
            f"{type(module).__name__} cannot be copied, and a copy is what is traced: "
            f"{type(error).__name__}: {error}"
        ) from error


class _CopiesWithKnownBuffers(FakeCopies):
    """Fake copies that know the values of small buffers, except deferred ones.

    Reading a deferred buffer would materialize it, and the tensors that it is computed from may be
    large.
    """

    def of(self, real: torch.Tensor) -> Any:
        self.known = not is_deferred_fake(real)
        return super().of(real)


def fake_copy(function: Any) -> tuple[Any, CapturedTensors]:
    """A copy of a module, made of torchfake's fakes, and the tensor that each fake is a copy of.

    A method of a module becomes the method of the copy; other functions are returned unchanged.
    """
    owner = getattr(function, "__self__", None)
    if inspect.ismethod(function) and isinstance(owner, nn.Module):
        copied_owner, captured = fake_copy(owner)
        return types.MethodType(function.__func__, copied_owner), captured
    if not isinstance(function, nn.Module):
        return function, CapturedTensors()
    copies = _CopiesWithKnownBuffers(None)
    copied = _copied(function, lambda: copies.of_module(function))
    names = {id(t): name for name, t in reversed(list(_named_tensors(function)))}
    originals = list(all_tensors(function, set()))
    return copied, CapturedTensors(
        (names.get(id(t), ""), t, copies.by_tensor[id(t)]) for t in originals
    )


def fake_inputs(tree: Any) -> Any:
    """A tree of inputs, with fake copies of its tensors whose values are unknown.

    A tensor that occurs twice is copied twice: it is two inputs.
    """
    return pytree.tree_map_only(torch.Tensor, fake_like, tree)


def copy_for_symbolic_trace(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its parameters, which a symbolic trace does not read or write.

    The trace may compute with buffers, so they are copied, with their records and known values.
    """
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}

    def copy_buffers() -> nn.Module:
        for tensor in all_tensors(module, set()):
            if not tensor.is_leaf:  # deepcopy refuses tensors with a history
                memo[id(tensor)] = tensor.detach().clone()
        return copy.deepcopy(module, memo)

    return _copied(module, copy_buffers)


class TorchFakeCopies:
    """Copies made of torch's own fakes; real tensors, except those on ``meta``, are shared."""

    def __init__(self) -> None:
        self.fakes = TorchFakes()
        self._copies: dict[int, Any] = {}  # by the identity of the original
        self._originals: dict[int, torch.Tensor] = {}  # by the identity of the copy
        self.has_cuda = False

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if not (isinstance(tensor, FakeTensor) or tensor.is_meta):
            return tensor
        if id(tensor) not in self._copies:
            fake = self.fakes.from_tensor(tensor)
            if isinstance(tensor, nn.Parameter):
                fake = nn.Parameter(fake, requires_grad=False)
            fake.requires_grad_(tensor.requires_grad)
            self.has_cuda |= tensor.is_cuda
            self._copies[id(tensor)] = fake
            self._originals[id(fake)] = tensor
        return self._copies[id(tensor)]  # type: ignore[no-any-return]

    def of_tree(self, tree: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, self.of, tree)

    def of_module(self, module: nn.Module) -> nn.Module:
        memo = {id(tensor): self.of(tensor) for tensor in all_tensors(module, set())}
        return _copied(module, lambda: copy.deepcopy(module, memo))

    def restore_originals(self, table: dict[str, Any]) -> None:
        """Replace the copies among the values of `table` by their originals."""
        for name, value in table.items():
            table[name] = self._originals.get(id(value), value)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
