"""Typer's error about an option that a command lacks, with what may be meant.

Input: the error. Output: the same error; its message names the commands that have the option, or
options that are written alike, or the option whose help has its words. Invariant: an option that is
named exists, in the command that is named.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from torchfake.cli.descriptions import described_by

_CLOSE = 0.7
"""How alike two options are written that may be taken for each other."""

_LONGEST = 40  # a longer one is no name of an option: comparing it would take quadratic time


def name_what_is_meant(error: Any) -> None:
    """Let typer's error about an unknown option name the option that may be meant."""
    option: Any = getattr(error, "option_name", None)
    context: Any = getattr(error, "ctx", None)
    is_unknown = option is not None and hasattr(error, "possibilities")
    if not is_unknown or getattr(context, "parent", None) is None:
        return
    commands = context.parent.command.commands
    own = _options(context.command)
    others = {name: _options(each) for name, each in commands.items() if each != context.command}
    having = [f"torchfake {name}" for name, options in others.items() if option in options]
    error.possibilities = None
    if having:
        have = "has" if len(having) == 1 else "have"
        error.message += f" of torchfake {context.command.name}; {' and '.join(having)} {have} it"
    elif option.startswith("--") and len(option) <= _LONGEST:
        error.possibilities = _written_alike(option, own)
        error.message += "" if error.possibilities else _described(option, own, others)


def _options(command: Any) -> dict[str, Any]:
    """The options of a command by their long names."""
    return {name: each for each in command.params for name in each.opts if name.startswith("--")}


def _written_alike(option: str, known: dict[str, Any]) -> list[str]:
    """The options that are written like an unknown one, dashes aside."""
    bare = {name.lstrip("-"): name for name in known}
    close = difflib.get_close_matches(option.lstrip("-"), bare, n=3, cutoff=_CLOSE)
    return [bare[name] for name in close]


def _described(option: str, own: dict[str, Any], others: dict[str, dict[str, Any]]) -> str:
    """The option whose help has the words of an unknown one, with its help, or ""."""
    homes: dict[str, tuple[str, Any]] = {name: ("", each) for name, each in own.items()}
    for command, options in others.items():
        for name, each in options.items():
            homes.setdefault(name, (f"torchfake {command} ", each))
    texts = {name: f"{each.metavar or ''} {each.help or ''}" for name, (_, each) in homes.items()}
    found = described_by(option, texts)
    if not found:
        return ""
    home, shown = homes[found[0]]
    metavar = f" {shown.metavar}" if shown.metavar else ""
    return f"; see {home}{found[0]}{metavar}: {_first_sentence(shown.help)}"


def _first_sentence(text: str) -> str:
    return re.split(r"[.] | [\[]", text)[0].rstrip(".")
