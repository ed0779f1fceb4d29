"""The streams of the command: closed ones, full ones, and those of other encodings.

Input: what the command prints. Output: text on stdout, or one line on stderr that says why not.
Invariant: what is printed is written at the end, in one place, so a stream that fails is one error
there; a file that is opened never gets the number of a closed stream.
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

from torchfake._escapes import printable


class StreamError(Exception):
    """What was to be printed could not be."""


class Answer(io.StringIO):
    """What is printed, until it is written; it looks like the stream that it is for."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return str(getattr(self._stream, "encoding", None) or "utf-8")

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        with contextlib.suppress(ValueError):  # it was closed
            return bool(self._stream.isatty())
        return False


@contextlib.contextmanager
def answer_on_stdout() -> Iterator[None]:
    """Context after which what was printed is written to stdout.

    Raises:
        StreamError: if stdout is closed, at once; or if it cannot be written to.
    """
    _open_closed()
    stream: Any = sys.stdout
    if stream is None or getattr(stream, "closed", False):
        raise StreamError("there is no stdout to print to: it is closed")
    answer = Answer(stream)
    try:
        with contextlib.redirect_stdout(answer):
            yield
    finally:
        _write(stream, answer.getvalue())


def _write(stream: Any, text: str) -> None:
    if not text:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError) as error:  # ValueError: it was closed
        _abandon(stream)
        reason = getattr(error, "strerror", None) or str(error)
        raise StreamError(f"stdout could not be written to: {reason}") from error


def write_error(text: str) -> None:
    """Write to stderr, escaped; if that fails, there is nobody to tell."""
    stream: Any = sys.stderr
    if stream is None:
        return
    text = printable(text, keep="\n")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        _abandon(stream)


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


def _abandon(stream: Any) -> None:
    """Have what a stream still holds go nowhere, so that the end of the process is no failure."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _open_closed() -> None:
    """Open descriptors and streams that are closed, so that no file and no library meets them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
