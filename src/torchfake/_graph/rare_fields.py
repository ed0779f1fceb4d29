"""Attributes that few objects of a class set: kept in a dict, so that most objects need no memory.

Input: a class whose objects have a slot ``_rare``, None at first. Output: :class:`RareField`, an
attribute of the class with a default. Invariant: a dict is never changed after it was made, so that
a copy of an object, or another thread, may share it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class RareField(Generic[_T]):
    """An attribute that is kept in the dict ``_rare`` of its object."""

    __slots__ = ("_default", "_name")

    def __init__(self, default: _T) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> _T:
        rare = instance._rare
        value: _T = self._default if rare is None else rare.get(self._name, self._default)
        return value

    def __set__(self, instance: Any, value: _T) -> None:
        instance._rare = {**(instance._rare or {}), self._name: value}
