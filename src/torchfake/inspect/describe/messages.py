"""Parts of messages: an error on one line, and what was answered.

Input: an error; answers. Output: text to put into a
message. Invariant: the text has no line break, and a bounded length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchfake._unknown_values.answers import Answer
from torchfake.errors import printable


def one_line(error: BaseException, *, limit: int = 400) -> str:
    """``ValueError: its message``, on one line of at most about `limit` characters."""
    text = printable(" ".join(str(error).split()))
    if len(text) > limit:
        text = text[:limit].rsplit(" ", 1)[0] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def answers_to_dict(answers: Sequence[Answer]) -> dict[str, Any]:
    """What was answered, ready for JSON: a line each. Nothing if nothing was."""
    return {"answers": list(map(str, answers))} if answers else {}


def answer_lines(answers: Sequence[Answer]) -> list[tuple[str, str]]:
    """The same as lines of a name and a text each."""
    return [("" if i else "answered", str(answer)) for i, answer in enumerate(answers)]
