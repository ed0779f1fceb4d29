"""What the functions of a layer call and read, and whether that is still what it was.

Input: functions of a class of layers, and where they look names up: a class, a module. Output: what
is found there, to be compared with later. Invariant: whatever the program replaces, sets or deletes
there is noticed; what it puts in the place of an equal object is not, since nobody does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, NamedTuple

import torch


class Callees(NamedTuple):
    """Things that are found in one place."""

    get: Callable[[Any], Any]
    place: Any
    found: Any


def in_namespace(names: Iterable[str], namespace: Mapping[str, Any]) -> list[Callees]:
    """What these names are in the namespace of a module or class."""
    return _found_by(itemgetter, names, namespace)


def of_class(names: Iterable[str], cls: type) -> list[Callees]:
    """What these attributes of a class are, inherited ones too."""
    return _found_by(attrgetter, names, cls)


def _found_by(getter: Any, names: Iterable[str], place: Any) -> list[Callees]:
    names = sorted({*names})
    if not names:
        return []
    get = getter(*names)  # one call for all: it takes a third of the time of as many look-ups
    return [Callees(get, place, get(place))]


METHODS = ("uniform_", "normal_", "fill_", "zero_")
"""Of tensors, by which layers and initialisers write: C++ defines them, no class of Python does."""


NAMESPACES = vars(torch.Tensor).keys(), vars(torch.nn.Parameter).keys()
"""Where the program may define something in the place of a method of tensors."""

_have_none = methodcaller("isdisjoint", METHODS)


def methods_of_tensors() -> list[Callees]:
    """Whether the program has defined something in the place of :data:`METHODS`."""
    return [Callees(_have_none, names, _have_none(names)) for names in NAMESPACES]


def sizes_of(places: Iterable[Any]) -> list[Callees]:
    """How much classes and modules define: the program may add what was inherited, built in, or not
    there.
    """
    namespaces = tuple(map(vars, places))
    return [Callees(_sizes, namespaces, _sizes(namespaces))]


def _sizes(namespaces: tuple[Mapping[str, Any], ...]) -> tuple[int, ...]:
    return tuple(map(len, namespaces))


def are_as_before(callees: Iterable[Callees]) -> bool:
    """Whether all is found that was found."""
    try:
        for get, place, found in callees:
            if get(place) != found:
                return False
    except (AttributeError, KeyError):  # it has been deleted
        return False
    return True


def are_in(namespace: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether these names are there what they were when they were found."""
    return all(namespace.get(name) is value for name, value in found.items())


def globals_of(*functions: Any) -> dict[str, Any]:
    """The globals of their module that some functions read, as they are now."""
    found: dict[str, Any] = {}
    for function in map(inspect.unwrap, functions):
        if inspect.isfunction(function):
            names, namespace = function.__code__.co_names, function.__globals__
            found.update({name: namespace[name] for name in names if name in namespace})
    return found
