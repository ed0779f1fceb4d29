"""The output of the ``torchfake`` command: a record on stdout, an error as one line on stderr.

Input: a record, or code that may fail. Output: text, and an exit code. Invariant: stdout has the
answer only; errors, which name arguments of Python functions, name the options in their place.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rich  # noqa: F401  a missing one is told before a command runs; its console takes longer
import typer

import torchfake
from torchfake._core.gpu_profiles import named_profiles
from torchfake.cli import interrupts
from torchfake.cli.stdout import json_text, write_error
from torchfake.errors import InputsError, MissingExtraError, TorchFakeError, printable


def import_answers(gpus: Sequence[str] | None = None) -> None:
    """Import the functions that commands call, and torch. This takes seconds, in which an interrupt
    ends the process with one line on stderr. Misspelt GPU names are refused before.

    Args:
        gpus: names of GPUs to check.
    """
    with errors_on_one_line(False):
        named_profiles(gpus or (), "--gpu")
    interrupts.end_at_once()
    try:
        torchfake._import_core("inspect")
    finally:
        interrupts.raise_as_usual()


@contextlib.contextmanager
def errors_on_one_line(show_traceback: bool) -> Iterator[None]:
    """Context in which an error becomes one line on stderr, and exit code 2."""
    try:
        yield
    except typer.Exit:
        raise
    except BaseException as error:  # a library or a model's code may raise anything
        if show_traceback:
            write_error("".join(traceback.format_exception(error)))
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(interrupts.INTERRUPTED) from error
        is_ours = isinstance(error, (TorchFakeError, OSError))
        text = str(error) if is_ours else _line_of(error)
        if isinstance(error, (InputsError, MissingExtraError)):
            text = in_options(text)
        write_error(f"error: {printable(text)}\n")
        raise typer.Exit(2) from error


def _line_of(error: BaseException) -> str:
    from torchfake.inspect.records.messages import one_line

    return one_line(error)


def print_record(
    found: Any,
    as_json: bool,
    depth: int | None = None,
    *,
    units: str | None = None,
    macs: bool = False,
) -> None:
    """Print a record: as JSON, in colour on a terminal, or as plain text."""
    from torchfake.inspect.records.units import shown_as_macs, shown_in

    with shown_in(units), shown_as_macs(macs):
        _print(found, as_json, depth)


def _print(found: Any, as_json: bool, depth: int | None) -> None:
    from torchfake.inspect.records.record import plain_text, renderables

    if as_json:
        data = found.to_dict() if depth is None else found.to_dict(depth=depth)
        print(json_text(data))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # FORCE_COLOR makes a pipe one
        print(plain_text(found, depth=depth))
        return
    if console.width < 1:  # COLUMNS=0, where there is no terminal to ask
        console.width = 80
    for line in renderables(found, console.width, depth=depth):
        console.print(line, soft_wrap=True)


def write_report(found: Any, path: Path | None, units: str | None, macs: bool = False) -> None:
    """Write a record to an HTML page, if a path is given."""
    if path is None:
        return
    from torchfake.inspect.figures.report import report
    from torchfake.inspect.records.units import shown_as_macs, shown_in

    with shown_in(units), shown_as_macs(macs):
        report(found, path)


def write_snapshot(estimate: Any, path: Path | None) -> None:
    """Write a memory snapshot of an estimate on a GPU, if a path is given."""
    if path is None:
        return
    if estimate is None or estimate.gpu is None:
        raise InputsError("--snapshot needs a GPU: name one with --gpu")
    estimate.write_snapshot(path)


# Errors in the words of the command line.

_OPTIONS = (
    "accumulate", "allocator", "answer", "autocast", "batch", "checkpoint", "decode", "dtype",
    "engine", "gpu", "keep_gradients", "mesh", "micro_batch", "offload", "optimizer", "precision",
    "schedule", "seq", "sequence_parallel", "serve", "vary", "weights", "zero",
)  # fmt: skip
"""Arguments of Python functions that are options of the same name."""

_PARTS = "backend|block_size|cache|cache_dtype|context|prefill|prompt|users"
"""Arguments of ``Serve``, which are parts of the text of ``--serve``."""

_VALUE = r"""(?:(["'])(?P<quoted>[^"']*)["']|\((?P<several>[^)]*)\)|(?P<bare>[^\s,;:)]*))"""
_ARGUMENT = re.compile(rf"""(?<![-\w.'"])(?P<name>{"|".join(_OPTIONS)})={_VALUE}""")
_PART = re.compile(rf"""\b({_PARTS})=["']([^"']*)["']""")

_WORDS = {"mode='training'": "--train", ", loss= and mode=": " and --train"}

_SAID = "on the command line"
"""In the text of an error, the beginning of the options that it names itself."""


def in_options(text: str) -> str:
    """The text of an error, with ``--batch 1`` for ``batch=1``, and ``--serve`` for ``serve=``.

    >>> in_options("write batch=1, or give serve= cache='dynamic'")
    'write --batch 1, or give --serve cache=dynamic'
    """
    if _SAID in text:
        return text
    for python, option in _WORDS.items():
        text = text.replace(python, option)
    return _PART.sub(r"\1=\2", _ARGUMENT.sub(_option, text))


def _option(found: re.Match[str]) -> str:
    option = f"--{found['name'].replace('_', '-')}"
    value = found["quoted"] or found["several"] or found["bare"] or ""
    value = "none" if value == "None" else value
    return option if value in ("", "True") else f"{option} {value.replace(', ', ',')}"
