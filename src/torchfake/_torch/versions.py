"""The versions of torch that this torchfake works with, and the error or warning for others.

Input: the version of torch that is installed. Output: an error at import, or a warning at the first
mode. Invariant: of torch only the version is read, so that an old torch causes no other error.
"""

from __future__ import annotations

import os
import re
import warnings
from functools import cache

import torch


class UncheckedTorchWarning(UserWarning):
    """torch is newer than any that this torchfake has been run on."""


OLDEST = (2, 12)
"""The oldest version that is supported: ``tests/_torch/test_versions.py`` compares pyproject.toml
and the docs."""

NEWEST_RUN = (2, 15)
"""The newest that the suite has been run on: docs/versions.md."""

ACCEPT = "TORCHFAKE_ACCEPT_TORCH"
"""The environment variable that holds a version to accept without a warning, such as ``2.16``."""


def parsed(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else NEWEST_RUN


def refuse_old_torch() -> None:
    """Raise an error if torch is older than any that is supported.

    Raises:
        ImportError: with the command that installs a newer one.
    """
    if parsed(torch.__version__) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise ImportError(
            f"torchfake needs torch {needed} or newer, and torch {torch.__version__} is installed: "
            f'pip install --upgrade "torch>={needed}"'
        )


def is_tried() -> bool:
    """Whether the suite has been run on the installed torch, or the user accepts that version."""
    installed = parsed(torch.__version__)
    return installed <= NEWEST_RUN or parsed(os.environ.get(ACCEPT) or "0.0") == installed


@cache
def warn_of_new_torch() -> None:
    """Warn, once in a process, of a torch newer than the tested versions."""
    if is_tried():
        return
    versions = NEWEST_RUN, parsed(torch.__version__)
    newest, name = (".".join(map(str, version)) for version in versions)
    warnings.warn(
        f"torch {torch.__version__} is newer than {newest}, the newest that this torchfake has "
        "been run on: what torch changed in private is unknown to it. It does without what only "
        "saves time, and errors or wrong results may follow. Look for a newer torchfake, or set "
        f"{ACCEPT}={name} to go on at full speed and without this warning",
        UncheckedTorchWarning,
        stacklevel=4,
    )
