"""The fakes that are reached from an attribute of a module: in containers, objects and closures.

Input: a value that a module holds, and the classes of such values. Output: the tensors found, at
any depth. Invariant: nothing of the program is called or changed; what belongs to the whole process
or to torch.distributed is not looked at.

The garbage collector tells what an object refers to, whatever it is: containers, slots, partials,
the cells of closures, and the caches of ``lru_cache``. So this finds all that ``copy.deepcopy``
would copy. Then comes what a class keeps for its instances: tables, caches and closures of methods.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import logging
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextvars import ContextVar as ContextVariable  # which others hold state in
from typing import Any

import torch

from torchfake._tensor.fake_tensor import FakeTensor, user_attributes
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._torch import subclass

_ENDS = (types.ModuleType, types.FrameType, types.CodeType, logging.Logger)
_NOT_OURS = "torch.distributed."  # which manages its tensors itself; not torch.distributions
_LIBRARIES = sys.stdlib_module_names | {"torch", "torchfake", "numpy"}
"""Top-level modules whose classes keep nothing of a program: they are most classes of a model."""

_DICTS = {dict, OrderedDict}
_UNTRACKED = (tuple, ContextVariable)
Found = FakeTensor | FakeUntypedStorage | torch.nn.Module


class Search:
    """One search for fakes, in which each object is looked at once.

    Args:
        root: its submodules are searched by the caller; modules that contain it are not looked at.
    """

    def __init__(self, root: torch.nn.Module | None = None) -> None:
        submodules = [] if root is None else list(root.modules())
        self._seen: dict[int, Any] = dict(zip(map(id, submodules), submodules, strict=True))
        self._root = root
        self._classes: dict[type, None] = {}  # of objects that were looked at, or held by them

    def from_tensor(self, tensor: torch.Tensor) -> Iterator[Found]:
        """The same of the attributes and hooks of `tensor`, without itself."""
        if held := _held_by_tensor(tensor):
            yield from self.from_value(held)

    def note_class(self, module: torch.nn.Module) -> None:
        """Have :meth:`from_classes` look at the class of a module."""
        self._classes[type(module)] = None

    def from_classes(self) -> Iterator[tuple[str, Found]]:
        """The same of the classes of all that was looked at, with the name of the class attribute;
        and the modules there that are not below the root, which may be those of other models.
        """
        with_metaclasses = {**self._classes, **dict.fromkeys(map(type, self._classes))}
        mros = map(inspect.getmro, with_metaclasses)
        classes = list(dict.fromkeys(itertools.chain.from_iterable(mros)))
        for cls in classes:
            if cls.__module__.partition(".")[0] in _LIBRARIES:
                continue
            for name, value in list(vars(cls).items()):
                if isinstance(value, type) and value.__qualname__ == f"{cls.__qualname__}.{name}":
                    classes.append(value)  # the body of a class defines it
                for found in self.from_value(value, of_class=True):
                    yield f"{cls.__qualname__}.{name}", found

    def from_value(self, value: Any, *, of_class: bool = False) -> Iterator[Found]:
        """The fakes that `value` is, wraps or refers to, and their storages that it refers to.
        Tensors are found once for each value; modules only in what belongs to a class.
        """
        pending, tensors = [value], set[int]()  # the next one is last
        while pending:
            value = pending.pop()
            if isinstance(value, torch.Tensor):
                if id(value) not in tensors:
                    tensors.add(id(value))
                    yield from _fakes_of(value)
                    pending += _held_by_tensor(value)
            elif isinstance(value, FakeUntypedStorage):
                yield value
            elif (
                id(value) in self._seen
                or isinstance(value, _ENDS)
                or type(value).__module__.startswith(_NOT_OURS)
            ):
                continue
            elif of_class and isinstance(value, torch.nn.Module):
                yield value
            elif not self._is_end(value, of_class):
                self._seen[id(value)] = value
                pending += reversed(list(filter(may_refer, _referents(value))))

    def _is_end(self, value: Any, of_class: bool) -> bool:
        """Whether only the class of `value` is looked at: a class leads to no other class."""
        if isinstance(value, type):
            if not of_class:
                self._classes[value] = None
            return True
        if isinstance(value, torch.nn.Module) and any(m is self._root for m in value.modules()):
            return True
        if not of_class:
            self._classes[type(value)] = None
        return False


def _fakes_of(tensor: torch.Tensor) -> Iterator[FakeTensor]:
    for leaf in subclass.leaf_tensors(tensor):
        if isinstance(leaf, FakeTensor):
            yield leaf


def _held_by_tensor(tensor: torch.Tensor) -> list[Any]:
    return [*user_attributes(tensor).values(), *subclass.hooks_of(tensor)]


def may_refer(value: Any) -> bool:
    """Whether `value` may refer to others: what the collector tracks, and context variables, what
    C++ makes of tuples (``torch.max``) and numpy of arrays, which it does not.
    """
    if type(value) in _DICTS and not value:  # most attributes of a module: it has no hooks
        return False
    return gc.is_tracked(value) or isinstance(value, _UNTRACKED) or _is_array_of_objects(value)


def _is_array_of_objects(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.hasobject


def _referents(value: Any) -> Iterable[Any]:
    """What an object refers to; of a function, not the globals of its module."""
    if isinstance(value, types.FunctionType):
        return value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)
    if isinstance(value, ContextVariable):  # it refers to its default
        return value.get(None), *gc.get_referents(value)
    if isinstance(value, weakref.finalize):  # which is only the key of its arguments
        return value.peek() or ()
    if isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        return value.gi_frame.f_locals.values()
    if _is_array_of_objects(value):
        return value.tolist() if value.ndim else (value.item(),)
    return gc.get_referents(value)
