"""The text of ``--help``: options in groups, and colours as the terminal allows.

Input: the parameters of a command, each with the name of its group (typer's ``rich_help_panel``).
Output: what typer writes, with a section for each group. Invariant: rich, which takes half as long
to import as everything else that help needs, is not imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class Panel(str):
    """The name of a group, which makes the options that are in it."""

    def __call__(self, help: str, *names: str, **others: Any) -> Any:
        """An option: its help, its names if they differ from the argument's, more of typer's."""
        return typer.Option(*names, help=help, rich_help_panel=self, **others)


MODEL, INPUT, TRAINING, SERVING = map(Panel, ("Model", "Input", "Training", "Serving"))
GPU, LAYOUT, SEARCH, OUTPUT = map(Panel, ("GPU", "Layout", "Search", "Output"))
_ORDER = ("Arguments", MODEL, INPUT, TRAINING, SERVING, GPU, LAYOUT, SEARCH, OUTPUT, "Options")
"""The groups, in the order in which they are shown; options without one are in the last."""


class Command(TyperCommand):
    """A command whose help has groups."""

    def get_help(self, ctx: Any) -> str:
        """The text of the help."""
        _choose_colour(ctx)
        return super().get_help(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options."""
        _write(formatter, _sections(self.get_params(ctx), ctx))


class Group(TyperGroup):
    """All commands, whose summaries are never cut."""

    def get_help(self, ctx: Any) -> str:
        """The text of the help."""
        _choose_colour(ctx)
        return super().get_help(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands."""
        rows = [
            (_styled(name), command.get_short_help_str(limit=1000))
            for name, command in self.commands.items()
        ]
        _write(formatter, [*_sections(self.get_params(ctx), ctx), ("Commands", rows)])


Section = tuple[str, list[tuple[str, str]]]

_BOUNDS = r"(?:-?\d+<=)?x[<>]=\d+"
_RANGE = re.compile(rf"; {_BOUNDS}(?=\])|\s*\[{_BOUNDS}\]")
"""What typer adds of the range of a number: that a batch is at least 1 needs no words."""


def _sections(parameters: Iterable[Any], ctx: Any) -> Iterator[Section]:
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in _ORDER}
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        is_argument = parameter.param_type_name == "argument"
        group = getattr(parameter, "rich_help_panel", None) or _ORDER[-1]
        name, words = record[0].replace(" range>", ">"), _RANGE.sub("", record[1])
        found[_ORDER[0] if is_argument else group].append((_styled(name), words))
    yield from ((name, rows) for name, rows in found.items() if rows)


def _write(formatter: Any, sections: Iterable[Section]) -> None:
    for name, rows in sections:
        with formatter.section(_styled(name, bold=True)):
            formatter.write_dl(rows)


def _choose_colour(ctx: Any) -> None:
    """Have a pipe get colours too if ``FORCE_COLOR`` says so; a terminal has them anyway."""
    ctx.color = True if os.environ.get("FORCE_COLOR") else None


def _styled(text: str, *, bold: bool = False) -> str:
    if os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, bold=True) if bold else typer.style(text, fg="cyan")
