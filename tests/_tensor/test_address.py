"""Addresses of fakes: they identify memory, and no code gets one where there is none."""

from __future__ import annotations

import ctypes
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from torchfake._tensor.address import Address


def refuse() -> int:
    raise LookupError("no memory")


def test_it_computes_as_the_number() -> None:
    one, same, other = Address(1 << 62, refuse), Address(1 << 62, refuse), Address(1 << 61, refuse)
    number = 1 << 62
    assert one == same == number
    assert (one != other, other < one, one <= same, one > other, one >= number) == (True,) * 5
    assert {one: "a"}[number] == "a"  # type: ignore[index]
    assert sorted([one, other]) == [other, one]
    assert (one + 8, 8 + one, one + 8 - one, one - 8) == (number + 8, number + 8, 8, number - 8)
    assert number + 24 - one == 24
    assert (one % 16, one // 2, one & 15, one >> 60) == (0, number // 2, 0, 4)
    assert bool(one)
    assert (f"{one:x}", str(one), repr(one)) == (f"{number:x}", str(number), str(number))
    assert pickle.loads(pickle.dumps(one + 8)) == number + 8


READERS: dict[str, Callable[[Any], Any]] = {
    "ctypes.cast": lambda a: ctypes.cast(a, ctypes.POINTER(ctypes.c_ubyte)),
    "ctypes.string_at": lambda a: ctypes.string_at(a, 4),
    "ctypes.memmove": lambda a: ctypes.memmove(a, b"abcd", 4),
    "from_address": lambda a: (ctypes.c_ubyte * 4).from_address(a),
    "c_void_p": ctypes.c_void_p,
    "index": operator.index,
    "int": int,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_is_refused(reader: str) -> None:
    with pytest.raises((LookupError, ctypes.ArgumentError, TypeError)) as refused:
        READERS[reader](Address(1 << 62, refuse))
    if reader not in ("from_address", "c_void_p"):  # these take an int only
        assert "no memory" in str(refused.value)


def test_a_reader_gets_memory_where_there_is_some() -> None:
    buffer = ctypes.create_string_buffer(b"abcdefgh")
    address = Address(1 << 62, lambda: ctypes.addressof(buffer))
    assert ctypes.string_at(address, 4) == b"abcd"  # type: ignore[arg-type]
    assert ctypes.string_at(address + 2, 4) == b"cdef"  # type: ignore[arg-type]
    assert int(address) == ctypes.addressof(buffer)
