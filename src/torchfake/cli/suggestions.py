"""Commands that change the verdict "no": each is run before it is suggested.

Input: fits that are all negative, and the commands that may help. Output: those that exit with 0.
Invariant: a command that is suggested fits, or says which library it needs that is not here; what
the search of the fits has run is not run again.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torchfake._core.gpu_profiles import usual_profiles
from torchfake._progress import progress

if TYPE_CHECKING:
    from torchfake.inspect.memory.fit import Fits

_MOST_DOUBLED = 1
"""How often the number of GPUs of a plan is doubled, if it does not fit."""

_MOST_TO_HALVE = 15
"""Seconds that a plan may take for one on half as many GPUs to be tried after it."""

_MOST_SECONDS = 60
"""Time after which nothing further is tried."""

_under_way: list[str] = []  # the commands that are tried, which suggest nothing themselves


def with_suggestions(fits: Fits | None, run: Any) -> Fits | None:
    """The fits, with those of their next commands that fit.

    Args:
        fits: the fits, with commands that may help.
        run: runs the words of a command, and returns its exit code.
    """
    if fits is None or fits.fits or not fits.next_commands:
        return fits
    if _under_way:
        return replace(fits, next_commands=())
    end = time.monotonic() + _MOST_SECONDS
    with progress("Trying"):
        found = tuple(
            text
            for command in fits.next_commands
            for text in ((command,) if command in fits.ran else _helping(command, run, end))
        )
    return replace(fits, next_commands=found)


def _helping(command: str, run: Any, end: float) -> Iterator[str]:
    """The command if it fits; or a plan on twice as many GPUs, if that fits. A plan that fits is
    tried on half as many, and so on.
    """
    words = shlex.split(command)[1:]
    for number_doubled in range(_MOST_DOUBLED + 1):
        if time.monotonic() > end:
            return
        start = time.monotonic()
        code, error = _tried(words, run)
        missing = re.findall(r"pip install ([\w-]+)", error) if code == 2 else []
        if missing and "--weights" in words:
            code = _tried(_of_weights_alone(words), run)[0]
        if code == 0 and words[0] == "plan" and not number_doubled:
            words = _on_fewest(words, run, min(end, start + _MOST_TO_HALVE))
        if code == 0:
            needs = f"  # needs {missing[0]}, and may not fit" if missing else ""
            yield shlex.join(["torchfake", *words]) + needs
            return
        if code != 1 or words[0] != "plan" or words[words.index("--gpus") + 1] == "1":
            return
        words = _times(words, 2)


def _on_fewest(words: list[str], run: Any, end: float) -> list[str]:
    """A plan that fits, on half as many GPUs as often as that fits too and there is time."""
    while int(words[words.index("--gpus") + 1]) >= _LEAST_TO_HALVE and time.monotonic() < end:
        half = _times(words, 0.5)
        if _tried(half, run)[0] != 0:
            return words
        words = half
    return words


_LEAST_TO_HALVE = 4  # one GPU is a suggestion of its own, with checkpointing


def _times(words: list[str], factor: float) -> list[str]:
    """A plan for twice or half as many GPUs, with as large a batch on each."""
    words = [*words]
    for option in ("--gpus", "--batch"):
        if option in words:
            i = words.index(option) + 1
            words[i] = str(round(factor * int(words[i])))
    return words


def _of_weights_alone(words: Sequence[str]) -> list[str]:
    """The command that compares quantized weights with GPUs, which needs no library."""
    kept = ("--config", "--weights", "--gpu", "--profiles")
    options = [word for pair in pairwise(words[2:]) if pair[0] in kept for word in pair]
    return ["fit", words[1], *options]


def _tried(words: Sequence[str], run: Any) -> tuple[int, str]:
    """The exit code of a command, and what it writes to stderr."""
    once = ["--vary", "none"] if words[0] == "fit" else []  # the last one counts
    if words[0] == "fit" and "--gpu" not in words:  # if it fits on any, then on the largest
        once += ["--gpu", [*usual_profiles()][-1]]
    errors = io.StringIO()
    _under_way.append(words[0])
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            return int(run([*words, *once]) or 0), errors.getvalue()
    finally:
        _under_way.pop()
