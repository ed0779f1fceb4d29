"""Classes that stand for classes of torch which cannot be changed.

Input: a class of torch, and a function that constructs in its place. Output: a stand-in.
Invariant: only construction differs from the original; ``isinstance``, comparison, derivation and
attributes do not.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any


class StandIn(type):
    """The class of stand-ins. A C++ type cannot be changed, so its name is given to a stand-in."""

    original: Any
    make: Any
    is_instance: Any

    def __new__(mcs, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> Any:
        if any(isinstance(base, StandIn) for base in bases):  # a class that the user derives
            real = tuple(getattr(base, "original", base) for base in bases)
            return types.new_class(name, real, {}, lambda body: body.update(namespace))
        return super().__new__(mcs, name, bases, namespace)

    def __init__(cls, *args: Any) -> None:
        super().__init__(*args)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original) or bool(cls.is_instance(instance))

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(getattr(subclass, "original", subclass), cls.original)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.original

    def __hash__(cls) -> int:
        return hash(cls.original)

    def __repr__(cls) -> str:
        return repr(cls.original)


def never(instance: Any) -> bool:
    """Accept no other instances than those of the original."""
    return False


@functools.cache
def stand_in(make: Callable[..., Any], is_instance: Any, original: Any) -> Any:
    """Return a stand-in for `original`, which calls `make` with `original` and the arguments. Its
    instances are those of `original`, and the objects that `is_instance` accepts.
    """
    namespace = {
        "__module__": getattr(original, "__module__", "torch"),
        "__doc__": original.__doc__,
        "original": original,
        "make": staticmethod(functools.partial(make, original)),
        "is_instance": staticmethod(is_instance),
    }
    return StandIn(original.__name__, (), namespace)
