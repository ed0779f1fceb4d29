"""Errors about arguments that a public function does not have, with what may be meant.

Input: a function or class. Output: the same, which refuses unknown keyword arguments, and
positional ones where it takes none, in a line that names the argument and the remedy. Invariant:
its signature stays; a call that Python accepts is passed on as it is.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from torchfake._names.descriptions import described_by
from torchfake.errors import did_you_mean

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=type)

_ARGUMENT = re.compile(r"^    \*{0,2}(\w+): ((?:.|\n {8})*)", re.MULTILINE)
"""An argument in the Args section of a docstring, with its text."""

_FEW = 3
"""Functions that are named because they have an argument; if more have it, it says little."""

_signatures: list[Signature] = []  # of the functions checked here


def refuses_unknown_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function name the arguments that it does not have, and what may be meant.

    >>> @refuses_unknown_arguments
    ... def build(*, width=1):
    ...     '''Build.
    ...
    ...     Args:
    ...         width: the number of columns.
    ...     '''
    >>> build(widht=3)
    Traceback (most recent call last):
        ...
    TypeError: build() has no argument 'widht'; did you mean width=?
    >>> build(columns=3)
    Traceback (most recent call last):
        ...
    TypeError: build() has no argument 'columns'; see width=: the number of columns
    """
    signature = Signature.of(function)
    _signatures.append(signature)

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        signature.check(function.__name__, kwargs)
        return function(*args, **kwargs)

    return checked


def class_refuses_unknown_arguments(cls: _C) -> _C:
    """The same for a class, whose docstring may have the arguments of its constructor."""
    constructor: Any = cls.__init__  # type: ignore[misc]
    signature = Signature.of(constructor, cls.__doc__)
    most = signature.num_positional - 1  # without `self`

    @functools.wraps(constructor)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        signature.check(name, kwargs)
        if len(args) > most:
            raise TypeError(
                f"{name}() takes {most or 'no'} arguments without a name; by name it takes "
                f"{_by_name(signature.names)}"
            )
        constructor(self, *args, **kwargs)

    cls.__init__ = checked  # type: ignore[misc]
    return cls


class Signature(NamedTuple):
    """The arguments of a function."""

    name: str  # of the function, with parentheses
    home: str  # the package below torchfake that has the function
    names: tuple[str, ...]  # of those that are passed by name
    several: str  # of the one that takes all others without a name, or ""
    passes_on: bool  # whether it passes arguments of other names to another function
    num_positional: int  # the number of arguments that may be passed without a name
    documentation: str

    @classmethod
    def of(cls, function: Callable[..., Any], documentation: str | None = None) -> Signature:
        each = inspect.signature(function).parameters.values()
        by_name = tuple(p.name for p in each if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        several = next((p.name for p in each if p.kind == p.VAR_POSITIONAL), "")
        num = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in each)
        name = f"{function.__name__}()"
        home = ".".join(function.__module__.split(".")[:2])
        passes_on = any(p.kind == p.VAR_KEYWORD for p in each)
        text = inspect.cleandoc(documentation or function.__doc__ or "")
        return cls(name, home, by_name, several, passes_on, num, text)

    def check(self, function: str, given: Iterable[str]) -> None:
        """Refuse arguments that are passed by a name that the function does not have.

        Raises:
            TypeError: naming the first of them, and what may be meant.
        """
        for name in given:
            if name not in self.names and not self.passes_on:
                raise TypeError(f"{function}() has no argument {name!r}{self._hint(name)}")

    def _hint(self, unknown: str) -> str:
        if unknown == self.several:
            return f" with a name: give {unknown} without it, before the arguments that have one"
        described = self._described(unknown)
        close = did_you_mean(unknown, self.names, lambda name: f"{name}=")
        if described and not close:
            return described
        having = [its.name for its in _signatures if unknown in its.names and its.home == self.home]
        if 0 < len(having) <= _FEW:
            has = "has" if len(having) == 1 else "have"
            return f"{close or ';'} {' and '.join(sorted(having))} {has} it"
        return close or f"; it has {_by_name(self.names)}"

    def _described(self, unknown: str) -> str:
        """The argument whose description has the words of an unknown one."""
        described = dict(_ARGUMENT.findall(self.documentation))
        texts = {name: " ".join(described.get(name, "").split()) for name in self.names}
        if not (found := described_by(unknown, texts)):
            return ""
        return f"; see {found[0]}=: {re.split(r'[.;] ', texts[found[0]])[0].rstrip('.')}"


def _by_name(names: Iterable[str]) -> str:
    return ", ".join(f"{name}=" for name in dict.fromkeys(names) if name != "self")
