"""The result of a fake's ``data_ptr()``: a number that identifies memory, and no valid address.

Input: a number that identifies memory, and a function that allocates that memory, or raises.
Output: an :class:`Address`, which compares, hashes, prints and computes like the number. Invariant:
no code gets an address at which there is no memory: code that would read memory (ctypes, numpy,
extensions) needs an ``int`` or converts to one, and then gets a real address or an exception.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

ResolveAddress = Callable[[], int]
"""Gives the real address of the memory, which it allocates, or raises."""


def _as_number(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A method of an address that does what `operation` does to the number."""

    def method(self: Any, other: Any) -> Any:
        return operation(self.number, other.number if isinstance(other, Address) else other)

    return method


class Address:
    """A number that identifies memory: equal ones mean shared memory, as equal addresses do.

    transformers and accelerate find tied weights by addresses, and optimizers count parameters. The
    class does not derive from int, since C code reads the value of an int without a method call.
    """

    __slots__ = ("number", "offset_bytes", "resolve")

    def __init__(self, number: int, resolve: ResolveAddress, offset_bytes: int = 0) -> None:
        self.number = number + offset_bytes
        self.offset_bytes = offset_bytes
        self.resolve = resolve

    def __index__(self) -> int:
        return self.resolve() + self.offset_bytes

    __int__ = __index__

    @property
    def _as_parameter_(self) -> int:
        """The integer that ctypes passes to C for this object."""
        return self.__index__()

    def __bool__(self) -> bool:
        return self.number != 0

    def __hash__(self) -> int:
        return hash(self.number)

    __eq__, __lt__, __le__ = map(_as_number, (operator.eq, operator.lt, operator.le))
    __gt__, __ge__, __mod__ = map(_as_number, (operator.gt, operator.ge, operator.mod))
    __floordiv__, __and__ = map(_as_number, (operator.floordiv, operator.and_))
    __rshift__ = _as_number(operator.rshift)

    def __add__(self, num_bytes: int) -> Address:
        base = self.number - self.offset_bytes
        return Address(base, self.resolve, self.offset_bytes + num_bytes)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        """The distance to another address, or the address `other` bytes before this one."""
        return self.number - other.number if isinstance(other, Address) else self + -other

    def __rsub__(self, other: int) -> int:
        return other - self.number

    def __repr__(self) -> str:
        return repr(self.number)

    def __format__(self, spec: str) -> str:
        return format(self.number, spec)

    def __reduce__(self) -> Any:
        return int, (self.number,)
