"""Dispatch rules: generated functions that perform a whole hit, for operators called often.

Input: an operator, a signature, and its table of recipes. Output: a function that torch calls
instead of ``__torch_dispatch__`` (``torch.library.register_torch_dispatch``). Invariant: a rule
returns the result that ``_dispatch.dispatch`` would return. It calls ``dispatch`` for other
signatures, known values among several tensors, and recipes for more than one new wrapper.

torch looks for a rule at each call anyway. A rule saves the lookup of the table, the call of the
key function and the bound method: a tenth of a hit. Generating a rule takes as long as fifty hits,
so a signature gets one after :data:`CALLS_BEFORE` calls.

Rules are registered for modes and not for classes of fakes: if the rule of a class returns
NotImplemented, torch (2.13, 2.15) calls it a second time, without its owner.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from torchfake._cache.inference_mode import in_inference_mode, inference
from torchfake._cache.keys import NAMES, Layout
from torchfake._cache.recipes import Recipe
from torchfake._core import source_location
from torchfake._core.storage import storage_of_kind
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._torch import dispatcher, subclass

Rule = Callable[..., Any]

CALLS_BEFORE = 16
"""The number of calls of a signature before it gets a rule."""

_MAX_RULES = 3
"""The number of rules of one operator, for a signature each: rules are tried one after another."""


class _Connection:
    """The dispatcher, which imports this file and connects itself: :mod:`torchfake._dispatch`."""

    dispatch: Any = None
    mode: Any = None


_connection = _Connection()
_layouts: dict[str, list[tuple[Layout, dict[Any, Recipe]]]] = {}
"""The layouts that have a rule, each with its recipes, by the name of the operator."""


def connect(dispatch: Rule, mode: type) -> None:
    """Set the class of modes that rules are for, and the function for calls that are not hits."""
    _connection.dispatch, _connection.mode = dispatch, mode


def add(func: Any, layout: Layout, recipes: dict[Any, Recipe]) -> None:
    """Add a rule for one signature of `func`, which is tried before the existing ones."""
    known = [*_layouts.get(func.name(), ()), (layout, recipes)]
    if len(known) > _MAX_RULES:
        return
    _layouts[func.name()] = known
    rule: Rule = _connection.dispatch
    for each, of_each in known:
        rule = _maker(each, len(known) > 1)(of_each, rule)
    dispatcher.set_rule(func, _connection.mode, rule)


def clear() -> None:
    """Drop all rules."""
    for name in list(_layouts):
        dispatcher.remove_rule(name, _connection.mode)
    _layouts.clear()


def counting(
    key_of: Callable[[Args, Kwargs | None], Any], then: Callable[[], None]
) -> Callable[[Args, Kwargs | None], Any]:
    """Wrap `key_of` so that call number :data:`CALLS_BEFORE` calls `then` first."""
    calls = iter(range(CALLS_BEFORE))

    def counted(args: Args, kwargs: Kwargs | None) -> Any:
        if next(calls, None) == CALLS_BEFORE - 1:
            then()
        return key_of(args, kwargs)

    return counted


@cache
def _maker(layout: Layout, is_one_of_many: bool) -> Callable[[dict[Any, Recipe], Rule], Rule]:
    """Generate the function that makes rules of this layout, from recipes and the next rule."""
    variables, num, kwargs = layout.variables, layout.num_positional, layout.names
    is_signature = f"len(kwargs) == {len(kwargs)}" if kwargs else "not kwargs"
    if is_one_of_many:  # a single rule leaves another number to the ValueError of the unpacking
        is_signature += f" and len(args) == {num}"
    unpack = [f"({', '.join(variables[:num])},) = args"] if num else []
    unpack += [f"{a} = kwargs[{key!r}]" for a, key in zip(variables[num:], kwargs, strict=True)]
    # Of several values, of which some are known, `dispatch` finds the marks.
    known_key = layout.known_key if layout.is_partly_known == "False" else "NO_KEY"
    separator = "\n                "
    text = f"""
def make(recipes, rest):
    def rule(owner, func, types, args=(), kwargs=None):
        recipe = NO_RECIPE
        try:
            if {is_signature}:
                {separator.join([*unpack, layout.storages])}
                recipe = recipes[{known_key} if {layout.is_known} else {layout.unknown_key}]
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # and on below: an error raised here would show this as its context
        fast = recipe.fast
        if fast is None:
            {_RETURNS_ARGUMENT if layout.writes_first else "pass"}
            return rest(owner, func, types, args, kwargs)
        {_MAKES_WRAPPER}
    return rule
"""
    namespace = NAMES | _NAMES | {"__name__": __name__}
    exec(compile(text, f"{__file__}: {list(variables)}", "exec"), namespace)
    return namespace["make"]  # type: ignore[no-any-return]


_RETURNS_ARGUMENT = """\
returned, write = recipe.returned_argument, recipe.write
            if returned is not None and (write is None or write(args)):
                return args[returned]"""

_MAKES_WRAPPER = """\
record, wrapper, base, default_dtype, kind, value, make_value = fast
        if default_dtype is not None and default_dtype is not get_default_dtype():
            return rest(owner, func, types, args, kwargs)
        if make_value is not None:
            value = make_value(args, kwargs)
            if value is None:
                return rest(owner, func, types, args, kwargs)
        if base is None:
            if in_inference_mode():
                inference.seen = True
            try:
                frame = getframe(1)
            except ValueError:  # a thread of C++, where no Python has called
                location = None
            else:
                code = frame.f_code
                known = locations_in.get(id(code))
                if known is None:  # code of a library, or code not seen before
                    location = caller_location(2)
                else:
                    instruction = frame.f_lasti
                    location = known.get(instruction) or new_location(code, instruction)
            storage = storage_of_kind(kind, location, value)
        elif in_inference_mode() or (inference.seen and args[base].is_inference()):
            return rest(owner, func, types, args, kwargs)
        else:
            storage = args[base]._fake_storage
        fake = make_wrapper(*wrapper)
        fake._fake_attributes = {"_fake_meta": record, "_fake_storage": storage}
        return fake"""

_NAMES: dict[str, Any] = {
    "NO_KEY": object(),
    "NO_RECIPE": Recipe(outcome=None, op=None),
    "caller_location": source_location.caller_location,
    "get_default_dtype": torch.get_default_dtype,
    "getframe": sys._getframe,
    "in_inference_mode": in_inference_mode,
    "inference": inference,
    "locations_in": source_location.locations_in.cached,
    "make_wrapper": subclass.make_wrapper,
    "new_location": source_location.new_location,
    "storage_of_kind": storage_of_kind,
}
