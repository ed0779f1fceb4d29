"""Where in the user's code a tensor was made.

Enters: nothing but the running frames. Leaves: a place, cheap to take and resolved to a line
only when an error is printed. Invariant: no frame is kept alive.
"""

from __future__ import annotations

import os
import sys
import types
from typing import NamedTuple

import torch

_LIBRARY_ROOTS = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
)
_is_library: dict[types.CodeType, bool] = {}
_MAX_REMEMBERED = 100_000


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


def here(depth: int = 1) -> Origin | None:
    """The innermost running frame that is neither torch's nor ours."""
    frame: types.FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        library = _is_library.get(code)
        if library is None:
            library = _classify(code)
        if not library:
            return Origin(code, frame.f_lasti)
        frame = frame.f_back
    return None


def _classify(code: types.CodeType) -> bool:
    if len(_is_library) > _MAX_REMEMBERED:
        _is_library.clear()  # code made by exec in a loop: forget it rather than keep it alive
    name = code.co_filename
    library = name.startswith(_LIBRARY_ROOTS) or name.startswith("<frozen")
    _is_library[code] = library
    return library


def asked_by(answers: dict[types.CodeType, float]) -> float | None:
    """The answer for the function of torch's in `answers` that is asking, if one is: the first on
    the way up before any of the user's code.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code in answers:
            return answers[code]
        if not code.co_filename.startswith(_LIBRARY_ROOTS):
            return None
        frame = frame.f_back
    return None
