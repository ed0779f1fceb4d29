"""Typer's error about an option that a command lacks, or its value, with what may be meant.

Input: the error. Output: the same error; its message names the commands that have the option, or
options that are written alike, or the option whose help has its words. Invariant: an option that is
named exists, in the command that is named; no synonym is listed anywhere: the words are those that
users read in the help.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torchfake.errors import listed

_CLOSE = 0.7
"""How alike two options are written that may be taken for each other."""

_LONGEST = 40  # a longer one is no name of an option: comparing it would take quadratic time


def name_what_is_meant(error: Any) -> None:
    """Let typer's error about an unknown option name the option that may be meant, and that about a
    value what the option takes.
    """
    option: Any = getattr(error, "option_name", None)
    if type(error).__name__ == "BadParameter" and getattr(error.param, "help", None):
        error.message += f"; {_shown(error.param.opts[-1], error.param)}"
        return
    context: Any = getattr(error, "ctx", None)
    is_unknown = option is not None and hasattr(error, "possibilities")
    if not is_unknown or getattr(context, "parent", None) is None:
        return
    commands = context.parent.command.commands
    own = _options(context.command)
    others = {name: _options(each) for name, each in commands.items() if each != context.command}
    having = [f"torchfake {name}" for name, options in others.items() if option in options]
    error.possibilities = [name for name in own if name.startswith(f"{option}-")] or None
    if error.possibilities:
        return
    if having:
        those = f"{listed(having, 'and')} {'have' if having[1:] else 'has'}"
        error.message += f" of torchfake {context.command.name}; {those} it"
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
    return f"; see {home}{_shown(found[0], shown)}"


def _shown(name: str, option: Any) -> str:
    """An option, what it takes, and the first sentence of its help."""
    metavar = f" {option.metavar}" if option.metavar else ""
    sentence = re.split(r"[.] | [\[]", option.help)[0].rstrip(".")
    return f"{name}{metavar}: {sentence}"


_WORD = re.compile(r"\d+(?=[a-z])|[a-z]+\d*|\d+")  # "4bit" has two words, "bf16" has one

_LEAST_STEM = 3
"""Letters of a word that begins another one: ``len`` means ``length``, ``in`` not ``input``."""

_LEAST_COMMON = 7
"""Letters that two words of one stem have in common: ``quantization`` and ``quantize``."""

_HEAD = 3
"""Words with which a description says what it describes: they count twice."""

_LEAST_SHARE = 0.4
"""The share of its words that an unknown name has in common with what is found."""

_LEAST_SCORES = (0.5, 0.6)
"""Below it a word, or several, are in too many descriptions to tell them apart."""


def described_by(unknown: str, described: Mapping[str, str]) -> list[str]:
    """The names that the words of an unknown name describe best, or none.

    Rare words count more, and so do words that follow each other in both texts: each counts as the
    inverse of the number of names that have it; in a name, less if the name has other words.

    >>> described_by("max-new-tokens", {"decode": "Generate NEW tokens", "seq": "Tokens to read"})
    ['decode']
    """
    words = _words(unknown)
    names = {name: _words(name) for name in described}
    texts = {name: _words(text) for name, text in described.items()}
    scores: defaultdict[str, float] = defaultdict(float)
    for phrase in [*((word,) for word in words), *pairwise(words)]:
        named = [name for name, known in names.items() if _places(phrase, known)]
        for name in named:
            scores[name] += 2 / len(named) / len(names[name]) ** 2
        places = {name: at for name, known in texts.items() if (at := _places(phrase, known))}
        for name, at in places.items():
            scores[name] += (2 if at[0] < _HEAD else 1) / len(places)
    least = _LEAST_SHARE * len(words)
    found = {
        name: score
        for name, score in scores.items()
        if sum(bool(_places((word,), names[name] + texts[name])) for word in words) >= least
    }
    least_score = _LEAST_SCORES[len(words) > 1]
    best = max(found.values(), default=0)
    return [name for name, score in found.items() if score == best >= least_score]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _places(phrase: Sequence[str], words: list[str]) -> list[int]:
    """Where words that follow each other are in a text."""
    starts = range(len(words) - len(phrase) + 1)
    return [i for i in starts if all(map(_is_alike, phrase, words[i:]))]


def _is_alike(a: str, b: str) -> bool:
    """Whether two words are equal, or one begins the other, or both begin alike."""
    shorter, longer = sorted((a, b), key=len)
    if a == b or (len(shorter) >= _LEAST_STEM and longer.startswith(shorter)):
        return True
    return len(shorter) >= _LEAST_COMMON and longer.startswith(shorter[:_LEAST_COMMON])
