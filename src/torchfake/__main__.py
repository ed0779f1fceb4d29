"""The ``torchfake`` command, also as ``python -m torchfake``.

Enters: ``sys.argv``. Leaves: an exit code. Invariant: without the packages of the ``cli`` extra
the answer is the one line that installs them.
"""

from __future__ import annotations

import sys

from torchfake.errors import MissingExtraError


def main() -> int:
    """Run the command line.

    Returns:
        The exit code; where typer exits by itself, SystemExit carries it.
    """
    try:
        _run()
    except MissingExtraError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:  # while importing; the command itself tells its own
        sys.stderr.write("error: interrupted\n")
        return 130
    return 0


def _run() -> None:
    try:
        from torchfake import cli
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("rich", "typer"):
            raise MissingExtraError(
                f'the command line needs {error.name}: pip install "torchfake[cli]"'
            ) from error
        raise
    cli.app(prog_name="torchfake")


if __name__ == "__main__":
    sys.exit(main())
