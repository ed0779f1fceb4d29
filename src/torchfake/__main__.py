"""The entry point of the ``torchfake`` command and of ``python -m torchfake``.

Input: ``sys.argv``. Output: an exit code. Invariant: without the packages of the ``cli`` extra the
only output is one line with the command that installs them; nothing ends in a traceback.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import Any

from torchfake.cli import interrupts
from torchfake.cli.stdout import (
    CLOSED_PIPE,
    ClosedPipeError,
    StdoutError,
    answer_on_stdout,
    write_error,
)
from torchfake.cli.unknown_options import name_what_is_meant
from torchfake.errors import MissingExtraError


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    try:
        with answer_on_stdout():
            code = _run()
    except ClosedPipeError:
        code = CLOSED_PIPE
    except (MissingExtraError, StdoutError) as error:
        write_error(f"error: {error}\n")
        code = 2
    except KeyboardInterrupt:  # during an import; commands handle theirs themselves
        write_error("error: interrupted\n")
        code = interrupts.INTERRUPTED
    interrupts.ignore()
    return code


def _run() -> int:
    try:
        from torchfake.cli import commands
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("rich", "typer"):
            raise MissingExtraError(
                f'the command line needs {error.name}: pip install "torchfake[cli]"'
            ) from error
        raise
    finally:
        interrupts.raise_as_usual()
    return _exit_code_of(commands.app)


def _exit_code_of(app: Any) -> int:
    """Run the typer app, and return its exit code; typer's own errors are shown as typer does."""
    try:
        code: int | None = app(prog_name="torchfake", standalone_mode=False)
    except KeyboardInterrupt:
        code = interrupts.INTERRUPTED
    except Exception as error:  # the modules of click's classes differ between versions of typer
        if type(error).__name__ == "Abort":
            write_error("error: interrupted\n")
            return interrupts.INTERRUPTED
        if not hasattr(error, "format_message"):
            write_error(f"error: {type(error).__name__}: {error}\n")
            return 2
        shown = io.StringIO()
        shown_error: Any = error
        name_what_is_meant(shown_error)
        with contextlib.redirect_stderr(shown):
            shown_error.show()
        write_error(re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()))  # FORCE_COLOR colours help
        return int(shown_error.exit_code)
    if code == interrupts.INTERRUPTED:
        write_error("error: interrupted\n")
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
