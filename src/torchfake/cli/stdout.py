"""stdout and stderr of the command, which may be closed, full, or lack characters.

Input: the text that the command prints. Output: the text on stdout, or one line on stderr that says
why it could not be written. Invariant: all output is written at the end, in one place, where a
failing stdout is one error; no opened file gets the number of a closed standard descriptor.
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

from torchfake import _progress
from torchfake.errors import printable


class StdoutError(Exception):
    """The answer could not be printed."""


class ClosedPipeError(StdoutError):
    """The program that reads the answer has ended, as ``head`` does."""


CLOSED_PIPE = 141
"""The exit code if so, as of a process that SIGPIPE ends: 128 and the signal's number."""


class Answer(io.StringIO):
    """A buffer for printed text, with the encoding and ``isatty()`` of the file it is for."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the file."""
        return str(getattr(self._file, "encoding", None) or "utf-8")

    def isatty(self) -> bool:
        """Whether the file is a terminal."""
        with contextlib.suppress(ValueError):  # the file was closed
            return bool(self._file.isatty())
        return False


@contextlib.contextmanager
def answer_on_stdout() -> Iterator[None]:
    """Context that buffers printed text, and writes it to stdout on exit.

    Raises:
        StdoutError: on entry, if stdout is closed; on exit, if it cannot be written to.
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
    except (OSError, ValueError) as error:  # ValueError: the file was closed
        _abandon(file)
        if isinstance(error, BrokenPipeError):
            raise ClosedPipeError("nobody reads stdout") from error
        reason = getattr(error, "strerror", None) or str(error)
        raise StdoutError(f"stdout could not be written to: {reason}") from error


def write_error(text: str) -> None:
    """Write escaped text to stderr; failures are ignored, since they cannot be reported."""
    _progress.end()
    with contextlib.suppress(StdoutError):
        _write(sys.stderr, printable(text, keep="\n"))


@contextlib.contextmanager
def progress_on_stderr(command: str | None, wanted: bool | None) -> Iterator[None]:
    """Context with a counter of a command's runs on stderr, by default if that is a terminal; and
    with a line about what takes long, unless the user wants no progress.
    """
    is_quiet = wanted is False
    if wanted is None:
        wanted = False
        with contextlib.suppress(AttributeError, ValueError):  # stderr is closed
            wanted = sys.stderr.isatty()
    with contextlib.ExitStack() as stack:
        if not is_quiet:
            stack.enter_context(_progress.noticing(_write_notice))
        stack.enter_context(_progress.progress(f"torchfake {command}", wanted))
        yield


def _write_notice(text: str) -> None:
    with contextlib.suppress(StdoutError):
        _write(sys.stderr, f"{printable(text)}\n")


@contextlib.contextmanager
def chatter_on_stderr(show_warnings: bool) -> Iterator[None]:
    """Context in which the output of other code goes to stderr. Its warnings and logs are dropped
    unless `show_warnings`.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if not show_warnings:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.ERROR)  # what matters of these is raised
        yield


def json_text(data: Any) -> str:
    """The data as JSON in ASCII, with DEL escaped too, which ``json`` leaves as it is."""
    return json.dumps(data, indent=2).replace("\x7f", "\\u007f")


def _abandon(file: Any) -> None:
    """Discard the buffer of a file, so that flushing it at exit does not fail."""
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
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
