"""Where in the user's code a tensor was made.

Enters: nothing but the running frames. Leaves: a place, cheap to take and resolved to a line
only when an error is printed. Invariant: no frame is kept alive.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch

_LIBRARY_ROOTS = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
)


class AboutCode:
    """What `decide` says of a code object, asked once for each and forgotten with it.

    Keyed by identity: a code object's own hash reads all of its instructions.
    """

    def __init__(self, decide: Callable[[types.CodeType], bool]) -> None:
        self._decide = decide
        self.known: dict[int, bool] = {}  # by identity; the hot path looks here itself
        self._alive: dict[int, weakref.ref[types.CodeType]] = {}

    def __call__(self, code: types.CodeType) -> bool:
        known = self.known.get(id(code))
        return self._remember(code) if known is None else known

    def _remember(self, code: types.CodeType) -> bool:
        key = id(code)
        answer = self._decide(code)
        self._alive[key] = weakref.ref(code, lambda _: self._forget(key))
        self.known[key] = answer
        return answer

    def _forget(self, key: int) -> None:
        self.known.pop(key, None)
        self._alive.pop(key, None)


_SHARDING_ROOTS = tuple(
    os.path.join(_LIBRARY_ROOTS[0], "distributed", folder) + os.sep
    for folder in ("fsdp", "tensor", "_composable")
)

is_sharding = AboutCode(lambda code: code.co_filename.startswith(_SHARDING_ROOTS))
"""Whether code is of torch's functions that shard, or of what computes with shards. Asked of all
code of libraries when that is first met."""


def _is_librarys(code: types.CodeType) -> bool:
    is_sharding(code)
    name = code.co_filename
    return name.startswith(_LIBRARY_ROOTS) or name.startswith("<frozen")


is_library = AboutCode(_is_librarys)


Place = tuple[types.CodeType, int]
"""An :class:`Origin` before anybody asked for it: a plain tuple takes half the time to make."""


class Origin(NamedTuple):
    """One place in a program: `code` and the instruction in it."""

    code: types.CodeType
    instruction: int

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line} in {self.code.co_name}"

    @property
    def line(self) -> int:
        """The line number, from the instruction's offset in bytes."""
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end and line is not None:
                return line
        return self.code.co_firstlineno


def here(depth: int = 1) -> Place | None:
    """The innermost running frame that is neither torch's nor ours."""
    frame: types.FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        librarys = is_library.known.get(id(code))
        if librarys is None:
            librarys = is_library(code)
        if not librarys:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def asked_by(answers: dict[int, tuple[types.CodeType, float]]) -> float | None:
    """The answer for the function of torch's in `answers` that is asking, if one is: the first on
    the way up before any of the user's code. Keyed by the identity of their code.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        known = answers.get(id(code))
        if known is not None:
            return known[1]
        if not code.co_filename.startswith(_LIBRARY_ROOTS):
            return None
        frame = frame.f_back
    return None
