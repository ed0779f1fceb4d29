"""stdout and stderr of the command: closed, full, or of an encoding that lacks characters.

Input: what the command prints. Output: text on stdout, or one line on stderr that says why not.
Invariant: what is printed is written at the end, in one place, so a stdout that fails is one error
there; a file that is opened never gets the number of a closed descriptor.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from torchfake.errors import printable


class StdoutError(Exception):
    """The answer could not be printed."""


class Answer(io.StringIO):
    """The text that is printed, until it is written; it looks like the file that it is for."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the file."""
        return str(getattr(self._file, "encoding", None) or "utf-8")

    def isatty(self) -> bool:
        """Whether the file is a terminal."""
        with contextlib.suppress(ValueError):  # it was closed
            return bool(self._file.isatty())
        return False


@contextlib.contextmanager
def answer_on_stdout() -> Iterator[None]:
    """Context after which what was printed is written to stdout.

    Raises:
        StdoutError: if stdout is closed, at once; or if it cannot be written to.
    """
    _open_closed()
    file: Any = sys.stdout
    if file is None or getattr(file, "closed", False):
        raise StdoutError("there is no stdout to print to: it is closed")
    answer = Answer(file)
    try:
        with contextlib.redirect_stdout(answer):
            yield
    finally:
        _write(file, answer.getvalue())


def _write(file: Any, text: str) -> None:
    if file is None or not text:
        return
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        file.write(text.encode(encoding, "backslashreplace").decode(encoding))
        file.flush()
    except (OSError, ValueError) as error:  # ValueError: it was closed
        _abandon(file)
        reason = getattr(error, "strerror", None) or str(error)
        raise StdoutError(f"stdout could not be written to: {reason}") from error


def write_error(text: str) -> None:
    """Write to stderr, escaped; if that fails, there is nobody to tell."""
    with contextlib.suppress(StdoutError):
        _write(sys.stderr, printable(text, keep="\n"))


@contextlib.contextmanager
def chatter_on_stderr(show_warnings: bool) -> Iterator[None]:
    """Context in which what other code prints goes to stderr; its warnings and logs are dropped,
    unless they are requested.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if not show_warnings:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.WARNING)
        yield


def json_text(data: Any) -> str:
    """JSON in ASCII; DEL, the one control character that json does not escape, is in a string."""
    return json.dumps(data, indent=2).replace("\x7f", "\\u007f")


def _abandon(file: Any) -> None:
    """Have what a file still holds go nowhere, so that the end of the process is no failure."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)


def _open_closed() -> None:
    """Open the descriptors 0 to 2 if they are closed, so that no other file gets their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
