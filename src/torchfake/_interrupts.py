"""Ctrl-C while the ``torchfake`` command is still being imported.

Input: how this process was started. Output: handlers of the signal. Invariant: only where this
process is the command is anything changed, and after the import Python's own handler is back.

Importing torch takes seconds, in which an interrupt would end in a traceback, or be taken for a
package that is missing.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # what is imported here is imported before an interrupt is handled
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

INTERRUPTED = 130
"""The exit code of shells for a program that was interrupted."""


def _is_command() -> bool:
    module = ["-m", "torchfake"]
    given = getattr(sys, "orig_argv", [])
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if name == "-m":
        return any(given[i : i + 2] == module for i in range(len(given)))
    return name in ("torchfake", "torchfake.exe")


IS_COMMAND = _is_command()
"""Whether this process was started as the command."""

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
    if not (IS_COMMAND and _IS_HEARD):
        return
    try:
        signal.signal(signal.SIGINT, handler)
    except ValueError:  # only the main thread may
        return


end_at_once()
