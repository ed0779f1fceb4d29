"""Rules: the whole of a hit in one Python call, for operators that are called often.

Input: an operator, a signature, and its table of recipes. Output: a function that torch calls in
the place of ``__torch_dispatch__`` (``torch.library.register_torch_dispatch``). Invariant: it gives
what ``_dispatch.dispatch`` would give, and leaves to that what is no plain hit: other signatures,
known values, a recipe that takes more than one new wrapper.

torch looks for such a function at each call anyway. It spares a hit the look-up of the table, the
call of a key function and the bound method: a tenth. It is made of text, which takes as long as
fifty hits, so only when a signature has been called :data:`CALLS_BEFORE` times.

There are none for the classes of fakes: torch (2.13, 2.15) calls a rule of a class a second time,
without its owner, where that has answered NotImplemented.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from torchfake._cache.keys import NAMES, Layout
from torchfake._cache.recipes import Recipe
from torchfake._core import source_location
from torchfake._core.storage import storage_of_kind
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._torch import dispatcher, subclass

Rule = Callable[..., Any]

CALLS_BEFORE = 16
"""How often a signature is called before it gets a rule."""

_MAX_RULES = 3
"""How many signatures of one operator have a rule: each looks whether a call is of the next one."""


class Inference:
    """Whether there may be inference tensors among fakes: to ask each takes a tenth of a hit."""

    seen = False


inference = Inference()


class _Connection:
    """What is above this file: set by :mod:`torchfake._dispatch`."""

    dispatch: Any = None
    mode: Any = None


_connection = _Connection()
_layouts: dict[str, list[tuple[Layout, dict[Any, Recipe]]]] = {}
"""By the name of an operator: the signatures that have a rule, and their recipes."""


def connect(dispatch: Rule, mode: type) -> None:
    """Have torch call rules for this class of modes; what they leave goes to `dispatch`."""
    _connection.dispatch, _connection.mode = dispatch, mode


def add(func: Any, layout: Layout, recipes: dict[Any, Recipe]) -> None:
    """Make the rule of one signature of `func`, before those that it has."""
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
    """`key_of`, which calls `then` once, when it has been called :data:`CALLS_BEFORE` times."""
    calls = iter(range(CALLS_BEFORE))

    def counted(args: Args, kwargs: Kwargs | None) -> Any:
        if next(calls, None) == CALLS_BEFORE - 1:
            then()
        return key_of(args, kwargs)

    return counted


@cache
def _maker(layout: Layout, is_one_of_many: bool) -> Callable[[dict[Any, Recipe], Rule], Rule]:
    """What makes rules of this layout."""
    names, num, kwargs = layout.variables, layout.num_positional, layout.names
    is_signature = f"len(kwargs) == {len(kwargs)}" if kwargs else "not kwargs"
    if is_one_of_many:  # else another number is the exception, and raises one
        is_signature += f" and len(args) == {num}"
    unpack = [f"({', '.join(names[:num])},) = args"] if num else []
    unpack += [f"{a} = kwargs[{key!r}]" for a, key in zip(names[num:], kwargs, strict=True)]
    unpack += [layout.storages] if layout.storages else []
    is_unknown = f"not ({' or '.join(layout.is_known)})" if layout.tensors else "True"
    separator = "\n                "
    text = f"""
def make(recipes, rest):
    def rule(owner, func, types, args=(), kwargs=None):
        recipe = NO_RECIPE
        try:
            if {is_signature}:
                {separator.join(unpack) or "pass"}
                if {is_unknown}:
                    recipe = recipes[{layout.unknown_key}]
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # and on below: an error raised here would show this as its context
        fast = recipe.fast
        if fast is None:
            {_RETURNS_ARGUMENT if layout.facts.writes_first else "pass"}
            return rest(owner, func, types, args, kwargs)
        {_MAKES_WRAPPER}
    return rule
"""
    namespace = NAMES | _NAMES
    exec(compile(text, f"{__file__}: {layout.variables}", "exec"), namespace)
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
            frame = getframe(1)
            code = frame.f_code
            known = locations_in.get(id(code))
            if known is None:  # of a library, or new
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
    "NO_RECIPE": Recipe(outcome=None, op=None),
    "caller_location": source_location.caller_location,
    "get_default_dtype": torch.get_default_dtype,
    "getframe": sys._getframe,
    "in_inference_mode": torch.is_inference_mode_enabled,
    "inference": inference,
    "locations_in": source_location.locations_in.cached,
    "make_wrapper": subclass.make_wrapper,
    "new_location": source_location.new_location,
    "storage_of_kind": storage_of_kind,
}
