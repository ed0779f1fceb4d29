"""Parts of messages: an error on one line, names that may have been meant, what was answered.

Input: an error; a name that is not known, and those that are; answers. Output: text to put into a
message. Invariant: the text has no line break, and a bounded length.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from torchfake._escapes import printable
from torchfake._unknown_values.answer_log import Answer

_MAX_NAME = 200
"""Longer names are compared with none: that takes the square of their length."""


def one_line(error: BaseException, *, limit: int = 400) -> str:
    """``ValueError: its message``, on one line of at most about `limit` characters."""
    text = printable(" ".join(str(error).split()))
    if len(text) > limit:
        text = text[:limit].rsplit(" ", 1)[0] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def did_you_mean(unknown: str, known: Iterable[str]) -> str:
    """``; did you mean A, B?`` or "": the known names closest to an unknown one, case aside."""
    if len(unknown) > _MAX_NAME:
        return ""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(unknown.lower(), by_lower, n=3, cutoff=0.7)
    names = [by_lower[name] for name in close]
    listed = ", ".join(names[:-1]) + f" or {names[-1]}" if names[1:] else "".join(names)
    return f"; did you mean {listed}?" if names else ""


def answers_to_dict(answers: Sequence[Answer]) -> dict[str, Any]:
    """What was answered, ready for JSON: a line each. Nothing if nothing was."""
    return {"answers": list(map(str, answers))} if answers else {}


def answer_lines(answers: Sequence[Answer]) -> list[tuple[str, str]]:
    """The same as lines of a name and a text each."""
    return [("" if i else "answered", str(answer)) for i, answer in enumerate(answers)]
