"""The result of a fake's ``data_ptr()``: a number that identifies memory, and no valid address.

Input: a number that identifies memory, and a function that allocates that memory, or raises.
Output: an :class:`Address`, which compares, hashes, prints and computes like the number. Invariant:
no code gets an address at which there is no memory: code that would read memory (ctypes, numpy,
extensions) needs an ``int`` or converts to one, and then gets a real address or an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ResolveAddress = Callable[[], int]
"""Gives the real address of the memory, which it allocates, or raises."""


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

    def __eq__(self, other: object) -> Any:
        return self.number == _number(other)

    def __lt__(self, other: Any) -> Any:
        return self.number < _number(other)

    def __le__(self, other: Any) -> Any:
        return self.number <= _number(other)

    def __gt__(self, other: Any) -> Any:
        return self.number > _number(other)

    def __ge__(self, other: Any) -> Any:
        return self.number >= _number(other)

    def __add__(self, num_bytes: int) -> Address:
        base = self.number - self.offset_bytes
        return Address(base, self.resolve, self.offset_bytes + num_bytes)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        """The distance to another address, or the address `other` bytes before this one."""
        return self.number - other.number if isinstance(other, Address) else self + -other

    def __rsub__(self, other: int) -> int:
        return other - self.number

    def __mod__(self, alignment: int) -> int:
        return self.number % alignment

    def __floordiv__(self, divisor: int) -> int:
        return self.number // divisor

    def __and__(self, mask: int) -> int:
        return self.number & mask

    def __rshift__(self, num_bits: int) -> int:
        return self.number >> num_bits

    def __repr__(self) -> str:
        return repr(self.number)

    def __format__(self, spec: str) -> str:
        return format(self.number, spec)

    def __reduce__(self) -> Any:
        return int, (self.number,)


def _number(value: Any) -> Any:
    return value.number if isinstance(value, Address) else value
