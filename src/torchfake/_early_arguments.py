"""Arguments of the ``torchfake`` command that are wrong, found before torch is imported.

Input: ``sys.argv``. Output: nothing, or one line on stderr and the end of the process with exit
code 2. Invariant: only where this process is the command is anything looked at, and what is refused
here the command itself refuses in the same words.

Importing torch takes seconds: too long for a misspelt name of a GPU.
"""

from __future__ import annotations

import sys
from itertools import pairwise

from torchfake import _interrupts

_WITHOUT_CHECK = ("--profiles", "--help", "--version")
"""With a file of profiles there are other names; the others do nothing else."""


def names_of_gpus(arguments: list[str]) -> list[str]:
    """The values of ``--gpu`` that can be checked without reading a file."""
    if any(argument.partition("=")[0] in _WITHOUT_CHECK for argument in arguments):
        return []
    following = [value for name, value in pairwise(arguments) if name == "--gpu"]
    return following + [a.partition("=")[2] for a in arguments if a.startswith("--gpu=")]


def check(arguments: list[str]) -> None:
    """Refuse names that mean no GPU, or several.

    Raises:
        DeviceError: if one is given.
    """
    names = names_of_gpus(arguments)
    if names:
        from torchfake._core.gpu_profiles import named_profiles

        named_profiles(names, "--gpu")


if _interrupts.IS_COMMAND:
    from torchfake.errors import DeviceError

    try:
        check(sys.argv[1:])
    except DeviceError as error:
        from torchfake._streams import write_error

        write_error(f"error: {error}\n")
        raise SystemExit(2) from None
