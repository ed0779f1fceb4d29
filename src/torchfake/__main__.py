"""The entry point of the ``torchfake`` command and of ``python -m torchfake``.

Input: ``sys.argv``. Output: an exit code. Invariant: without the packages of the ``cli`` extra the
only output is one line with the command that installs them. Called by: the console script.
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
    except KeyboardInterrupt:  # during an import; the command itself handles its own
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
