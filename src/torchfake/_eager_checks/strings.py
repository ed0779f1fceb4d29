"""Strings that eager refuses as arguments, found by running the CPU kernel on small tensors.

Input: a call that has no recipe yet. Output: nothing, or the error that eager would raise.
Invariant: a string counts as refused only if the call with another string is accepted.

Meta kernels accept any string, or refuse it with another error. Eager's kernels compare it with the
strings that they know, which schemas do not list.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torchfake._eager_checks import small_calls
from torchfake._operators.operator_call import Args, Call, Kwargs, named_arguments

_OF_DEVICE = frozenset({"driver"})
"""Arguments whose values depend on the device: see ``_operators/argument_checks``."""

_ACCEPTED = ("sum", "amax", "add", "left", "trunc", "none", "L", "linear", "reduced", "ij")
"""Nearly every operator that takes a string accepts one of these, or None."""

_MAX_PASSED = 10_000
_passed: set[Any] = set()


def check_strings(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise the CPU kernel's error for a string among the arguments."""
    names = _string_arguments(func)
    if not names:
        return
    call = Call(func, args, kwargs)
    if _has_unsafe(func):
        call = _with(call, "unsafe", True)  # small tensors have other values
    named = named_arguments(call.func, call.args, call.kwargs)
    given = {name: value for name, value in named.items() if name in names}
    strings = {name: value for name, value in given.items() if isinstance(value, str)}
    key = call.func, tuple(strings.items())
    if not strings or key in _passed:
        return
    for cut in _cuts_for(call, list(strings)):
        error = small_calls.error_of(call, cut)
        if error is None:
            if len(_passed) < _MAX_PASSED:
                _passed.add(key)
            return
        if any(_is_accepted(call, cut, name) for name in strings):
            raise error


def _cuts_for(call: Call, names: list[str]) -> list[small_calls.Cut]:
    """The ways to make the tensors small, with other strings if a meta kernel refuses these."""
    variants = (_with(call, name, other) for name in names for other in (None, *_ACCEPTED))
    return next((cuts for c in (call, *variants) if (cuts := small_calls.cuts_for(c))), [])


def _is_accepted(call: Call, cut: small_calls.Cut, name: str) -> bool:
    """Whether the call is accepted with another string, or None, as the argument `name`."""
    changed = [_with(call, name, other) for other in (None, *_ACCEPTED)]
    return any(small_calls.error_of(other, cut) is None for other in changed)


def _with(call: Call, name: str, value: Any) -> Call:
    names = [argument.name for argument in call.func._schema.arguments][: len(call.args)]
    if name not in names:
        return Call(call.func, call.args, {**call.kwargs, name: value})
    args = [value if n == name else arg for n, arg in zip(names, call.args, strict=True)]
    return Call(call.func, tuple(args), call.kwargs)


@lru_cache(maxsize=4096)
def _has_unsafe(func: Any) -> bool:
    """Whether the operator can be told not to check values (``segment_reduce``)."""
    return any(argument.name == "unsafe" for argument in func._schema.arguments)


@lru_cache(maxsize=4096)
def _string_arguments(func: Any) -> frozenset[str]:
    """The names of the string arguments of an ATen operator."""
    if func.namespace != "aten":
        return frozenset()
    found = {a.name for a in func._schema.arguments if "str" in str(a.type)}
    return frozenset(found - _OF_DEVICE)
