"""The tensors that a function refers to, beside its arguments.

Input: a function, or an object that is called. Output: tensors in its closure, in the globals that
it names and in the object. Invariant: each tensor is listed once, in the order of the search; no
property and no ``__getattr__`` is run, except those of modules.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def captured_tensors(function: Any) -> list[torch.Tensor]:
    """The tensors that `function` refers to."""
    return list(_tensors(function, set()))


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        return
    for part in _parts_of(value):
        yield from _tensors(part, seen)


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, types.FunctionType):
        return _referred_to(value)
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (type, types.ModuleType)):
        return []
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    own = getattr(value, "__dict__", None)
    return list(own.values()) if isinstance(own, dict) else []


def _referred_to(function: types.FunctionType) -> list[Any]:
    found = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    names = function.__globals__
    found += [names[name] for name in function.__code__.co_names if name in names]
    return [part for part in found if not isinstance(part, (type, types.ModuleType))]
