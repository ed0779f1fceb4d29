"""``--config key=value``: text to values, and what to say of a key that is not known.

Enters: the strings of the command line. Leaves: a flat dict, nested keys still dotted.
"""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Iterable
from typing import Any

from torchfake.errors import TargetError


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """``key=value`` strings as a dict; values are JSON, else Python literals, else strings.

    Args:
        pairs: each ``key=value``; the last of two equal keys holds.

    Raises:
        TargetError: if a pair has no key or no ``=``.

    >>> parse_overrides(["d_model=1_024", "text_config.tie=false", "act=gelu"])
    {'d_model': 1024, 'text_config.tie': False, 'act': 'gelu'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise TargetError(f"--config {pair!r} is not of the form key=value")
        values[key.strip()] = parse_value(text.strip())
    return values


def parse_value(text: str) -> Any:
    """One value; what is neither JSON nor a Python literal is the string itself."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """``; did you mean A, B?`` or nothing: the known names closest to a wrong one, case aside."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), by_lower, n=3, cutoff=0.7)
    names = [by_lower[name] for name in close]
    listed = ", ".join(names[:-1]) + f" or {names[-1]}" if names[1:] else "".join(names)
    return f"; did you mean {listed}?" if names else ""


def one_line(error: BaseException, *, limit: int = 400) -> str:
    """``ValueError: what it says``, on one line of at most about `limit` characters."""
    text = " ".join(str(error).split())
    if len(text) > limit:
        text = text[:limit].rsplit(" ", 1)[0] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
