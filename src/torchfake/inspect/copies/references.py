"""The objects that a function refers to: closures, globals that it names, attributes of objects.

Input: a function or any object. Output: the tensors, modules, optimizers and functions of the user
that can be reached from it. Invariant: of a library's functions only the closures are followed,
because decorators keep the user's function there; their globals are not.
"""

from __future__ import annotations

import functools
import sysconfig
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchfake.observe import is_library_code


class Reached:
    """All objects that can be reached from `start`, each once."""

    def __init__(self, start: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        self.modules: list[tuple[str, torch.nn.Module]] = []  # outermost modules, with names
        self.optimizers: list[torch.optim.Optimizer] = []
        self.functions: list[types.FunctionType] = []
        self.methods: list[types.MethodType] = []
        self.kept: list[Any] = []  # Python modules and other objects that are not copied
        self._seen: dict[int, Any] = {}  # holds the objects, so that no id is reused
        pending = [("", start)]
        while pending:
            name, value = pending.pop()
            if id(value) in self._seen or isinstance(value, _ATOMS):
                continue
            self._seen[id(value)] = value
            if isinstance(value, _KEPT):
                self.kept.append(value)
                continue
            if isinstance(value, torch.Tensor):
                self.tensors.append(value)
            elif isinstance(value, torch.nn.Module):
                self._add_module(name, value)
            elif isinstance(value, torch.optim.Optimizer):
                self.optimizers.append(value)
            elif isinstance(value, types.MethodType):
                self.methods.append(value)
            elif isinstance(value, types.FunctionType):
                if is_of_library(value.__code__) and not value.__closure__:
                    continue
                self.functions.append(value)
            pending += list(_parts_of(value))[::-1]

    def _add_module(self, name: str, module: torch.nn.Module) -> None:
        self._seen.update({id(child): child for child in module.modules()})
        self.modules.append((name, module))


_ATOMS = (type(None), bool, int, float, complex, str, bytes, type,
          torch.device, torch.Size, types.BuiltinFunctionType)  # fmt: skip
_KEPT = (types.ModuleType, torch.Generator, torch.dtype)


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def is_of_library(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_LIBRARIES) or is_library_code(code)


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a value refers to directly, each with its name there."""
    if isinstance(value, types.FunctionType):
        yield from names_of(value)
    elif isinstance(value, types.MethodType):
        yield from (("", value.__func__), ("", value.__self__))
    elif isinstance(value, functools.partial):
        yield from [("", value.func), *(("", arg) for arg in value.args), *value.keywords.items()]
    elif isinstance(value, torch.Tensor):
        for kind in hooks_of(value):
            for hook in kind:
                yield "", hook
    elif isinstance(value, torch.nn.Module):
        yield from _held_by_modules(value)
    elif isinstance(value, Mapping):
        items = [*value.items()]  # a TensorDict is a mapping, and is iterated over its first dim
        yield from ((str(key), item) for key, item in items)
        yield from (("", key) for key, _ in items if isinstance(key, torch.Tensor))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from (("", item) for item in value)
    else:
        own = getattr(value, "__dict__", None)
        yield from own.items() if isinstance(own, dict) else ()


def _held_by_modules(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for child in module.modules():
        for name, value in vars(child).items():
            if name != "_modules":
                yield name, value


def hooks_of(tensor: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """The hooks of a leaf: those called with its gradient, and those called after accumulation."""
    if not tensor.is_leaf:
        return [], []
    before = tensor._backward_hooks or {}
    after = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
    return list(before.values()), list(after.values())


def names_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The names that a function may look up, with their values."""
    yield from closure_of(function).items()
    yield from ((name, function.__globals__[name]) for name in global_names(function))
    yield from (("", value) for value in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """The bound names of a function's closure, with their values."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def global_names(function: types.FunctionType) -> list[str]:
    """The globals that a function, or a function defined in it, may look up; none for a library's
    function, such as a decorator's wrapper.
    """
    if is_of_library(function.__code__):
        return []
    codes, names = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return sorted(name for name in names if name in function.__globals__)
