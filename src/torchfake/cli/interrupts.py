"""Ctrl-C while the ``torchfake`` command, and with it torch, is still being imported.

Input: whether this process is the command. Output: handlers of SIGINT. Invariant: a handler is set
only if this process is the command, and Python's own handler is restored after the import.

Importing torch takes seconds, in which an interrupt would end in a traceback, or be mistaken for a
missing package.
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
"""Whether Python handles SIGINT: a shell makes background jobs ignore the signal."""


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def end_at_once() -> None:
    """Let an interrupt end the process with one line on stderr, if the process is the command."""
    _handle_by(_end)


def raise_as_usual() -> None:
    """Let an interrupt raise KeyboardInterrupt again."""
    _handle_by(signal.default_int_handler)


def ignore() -> None:
    """Ignore interrupts once the answer has been written and the process is about to exit."""
    _handle_by(signal.SIG_IGN)


def _handle_by(handler: Any) -> None:
    if not (_IS_COMMAND and _IS_HEARD):
        return
    try:
        signal.signal(signal.SIGINT, handler)
    except ValueError:  # only the main thread may set a handler
        return


end_at_once()  # until the commands have been imported
