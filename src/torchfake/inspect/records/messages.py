"""Parts of messages: an error on one line, and the answers to questions about unknown values.

Input: an error; answers. Output: text for a message. Invariant: the text has no line break.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchfake.errors import MissingExtraError, TargetError, TorchFakeError, printable
from torchfake.observe import Answer

_OF_TORCHFAKE = ("finiteness", "torch")
"""What answers without being asked: assumptions that hold of any program that works."""


def one_line(error: BaseException, *, limit: int = 400) -> str:
    """``ValueError: its message``, on one line of at most about `limit` characters."""
    text = printable(" ".join(str(error).split()))
    if len(text) > limit:
        text = text[:limit].rsplit(" ", 1)[0] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def import_refused(name: str, error: BaseException) -> TorchFakeError:
    """The error to raise where `name` cannot be imported: it names a package that is missing."""
    cause: BaseException | None = error
    root = error
    while cause is not None:
        missing = getattr(cause, "name", None) if isinstance(cause, ModuleNotFoundError) else None
        if missing is not None:
            package = missing.partition(".")[0]
            needs = f"{name} needs {package}, which is not installed: pip install {package}"
            return MissingExtraError(needs)
        root, cause = cause, cause.__cause__ or cause.__context__
    why = "" if root is error else f"; the first error was {one_line(root)}"
    return TargetError(f"{name} could not be imported: {one_line(error)}{why}")


def assumed_text(answers: Sequence[Answer]) -> str:
    """For the message of an error: how many values had been assumed before it, and the last."""
    given = [answer for answer in answers if answer.answered_by not in _OF_TORCHFAKE]
    if not given:
        return ""
    others = f" (and {len(given) - 1} before it)" if len(given) > 1 else ""
    return f"; it may follow from a value that was assumed{others}: {given[-1]}"


def answers_to_dict(answers: Sequence[Answer]) -> dict[str, Any]:
    """The answers as a dict for JSON, one line each; an empty dict if there are none."""
    return {"answers": list(map(str, answers))} if answers else {}
