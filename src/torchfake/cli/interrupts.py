"""Ctrl-C while the ``torchfake`` command, and with it torch, is still being imported.

Input: whether this process is the command. Output: handlers of the signal. Invariant: only where
this process is the command is anything changed, and after an import Python's own handler is back.

Importing torch takes seconds, in which an interrupt would end in a traceback, or be taken for a
package that is missing.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

from torchfake import _IS_COMMAND

INTERRUPTED = 130
"""The exit code of shells for a program that was interrupted."""

_IS_HEARD = signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""Whether an interrupt is Python's to handle: a shell has background jobs ignore it."""


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def end_at_once() -> None:
    """From now on an interrupt ends the process with one line, if it is the command."""
    _handle_by(_end)


def raise_as_usual() -> None:
    """From now on an interrupt is a KeyboardInterrupt again."""
    _handle_by(signal.default_int_handler)


def ignore() -> None:
    """The answer has been given: what is left is the end of the process."""
    _handle_by(signal.SIG_IGN)


def _handle_by(handler: Any) -> None:
    if not (_IS_COMMAND and _IS_HEARD):
        return
    try:
        signal.signal(signal.SIGINT, handler)
    except ValueError:  # only the main thread may
        return


end_at_once()  # until the commands have been imported
