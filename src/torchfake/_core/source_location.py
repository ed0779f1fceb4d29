"""Source locations: the line of user code that called an operator.

Input: the running frames. Output: a code object and an instruction offset, resolved to a line only
when printed; one tuple for all fakes made by an instruction. Invariant: no frame is kept alive.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch

_LIBRARY_ROOTS = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    str(Path(__file__).absolute().parents[1]) + os.sep,  # the package torchfake
)


_T = TypeVar("_T")


class CodePredicate(Generic[_T]):
    """A function of code objects, evaluated once for each and cached as long as the code lives.

    The key is the identity of the code object, whose own hash reads all of its instructions.
    """

    def __init__(self, predicate: Callable[[types.CodeType], _T]) -> None:
        self._predicate = predicate
        self.cached: dict[int, _T] = {}  # by identity; hot paths read this dict directly
        self._alive: dict[int, tuple[weakref.ref[types.CodeType], ...]] = {}

    def __call__(self, code: types.CodeType) -> _T:
        key = id(code)
        return self.cached[key] if key in self.cached else self._evaluate(code)

    def _evaluate(self, code: types.CodeType) -> _T:
        key = id(code)
        result = self._predicate(code)
        # Implemented in C: Python would discard an interrupt here, and the result would stay.
        forget = partial(self.cached.pop, key), partial(self._alive.pop, key)
        self._alive[key] = tuple(weakref.ref(code, each) for each in forget)
        self.cached[key] = result
        return result


_SHARDING_ROOTS = tuple(
    os.path.join(_LIBRARY_ROOTS[0], "distributed", folder) + os.sep
    for folder in ("fsdp", "tensor", "_composable")
)


is_sharding_code = CodePredicate(lambda code: code.co_filename.startswith(_SHARDING_ROOTS))
"""Whether code belongs to torch's functions that shard, or that compute with shards. Evaluated with
:data:`is_library_code`, when a code object is first met."""


def _is_library_code(code: types.CodeType) -> bool:
    is_sharding_code(code)
    name = code.co_filename
    return name.startswith(_LIBRARY_ROOTS) or name.startswith("<frozen")


is_library_code = CodePredicate(_is_library_code)
"""Whether code belongs to torch, torchfake or frozen modules, and not to the user."""


RawLocation = tuple[types.CodeType, int]
"""The fields of a :class:`SourceLocation`, as a plain tuple, which takes half the time to make."""


locations_in: CodePredicate[dict[int, RawLocation] | None]
locations_in = CodePredicate(lambda code: None if is_library_code(code) else {})
"""The known locations in a code object of the user, by instruction; None for library code."""

_MAX_LOCATIONS = 20_000


class _Known:
    num_locations = 0


def new_location(code: types.CodeType, instruction: int) -> RawLocation:
    """Make the location of an instruction. Most calls come from an instruction that has one
    already: making one for each call would be a tenth of the cost of a fake.
    """
    _Known.num_locations += 1
    if _Known.num_locations > _MAX_LOCATIONS:
        _Known.num_locations = 1
        for known in list(locations_in.cached.values()):
            if known:
                known.clear()  # locations keep their code alive; storages keep their location
    in_code = locations_in(code)
    assert in_code is not None
    return in_code.setdefault(instruction, (code, instruction))


class SourceLocation(NamedTuple):
    """An instruction in a code object, which prints as file, line and function."""

    code: types.CodeType
    instruction: int  # offset in bytes

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line} in {self.code.co_name}"

    @property
    def line(self) -> int:
        """The line number of the instruction."""
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end and line is not None:
                return line
        return self.code.co_firstlineno


_texts_in: CodePredicate[dict[int, str]] = CodePredicate(lambda _: {})
"""The texts of locations in a code object, by instruction: a line is found by a search."""


def text_of(location: RawLocation | None) -> str:
    """A location as file, line and function; "" for None."""
    if location is None:
        return ""
    code, instruction = location
    texts = _texts_in(code)
    if instruction not in texts:
        texts[instruction] = str(SourceLocation(code, instruction))
    return texts[instruction]


def caller_location(depth: int = 1) -> RawLocation | None:
    """The location of the innermost frame of user code, if any, starting `depth` frames up."""
    try:
        frame: types.FrameType | None = sys._getframe(depth)
    except ValueError:  # a thread of C++, which has no Python frames but those of torchfake
        return None
    while frame is not None:
        code = frame.f_code
        key = id(code)
        known = locations_in.cached[key] if key in locations_in.cached else locations_in(code)
        if known is not None:
            instruction = frame.f_lasti
            return known.get(instruction) or new_location(code, instruction)
        frame = frame.f_back
    return None


def user_stacklevel() -> int:
    """The ``stacklevel`` with which a warning raised by the caller names a line of user code."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY_ROOTS):
        frame, level = frame.f_back, level + 1
    return level


def assumed_value_for_caller(values: dict[int, tuple[types.CodeType, float]]) -> float | None:
    """The value that `values` has for the innermost running function of torch that it lists.

    Only frames below user code count. `values` maps the identity of a function's code to the code
    and the value that the function gets in place of an unknown one.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        listed = values.get(id(code))
        if listed is not None:
            return listed[1]
        if not code.co_filename.startswith(_LIBRARY_ROOTS):
            return None
        frame = frame.f_back
    return None
