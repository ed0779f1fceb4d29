"""What is remembered of operations: for each call's form and key, its recipe.

Enters: calls that have run. Leaves: the recipes of calls like them. Invariant: at most
``MAX_RECIPES`` are held, for the process, by all modes and threads; a table is only ever added to
or dropped whole, so that a thread that reads it sees all of a recipe or none.

Never remembered, by rule: operators outside ``aten``, whose kernels may be anybody's Python;
operators whose result depends on values; those that write an ``out=``, which may grow and must not
overlap; calls with a real tensor, a generator or a symbolic size among the arguments (no key holds
them). And by name, each with its reason: ``_EXCLUDED``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchfake import _recipes
from torchfake._agreement import disagreements
from torchfake._call import Args, Kwargs
from torchfake._keys import KeyFunction, form_of, key_function
from torchfake._ops import TAKES_MASKS, plan_of
from torchfake._recipes import Before, Recipe
from torchfake._rules import has_rule
from torchfake.errors import CacheError

MAX_RECIPES = 50_000
"""About 1 KB each; those of long lists of tensors count for as many as they are large."""

_EXCLUDED = {
    "aten::as_strided": "refuses what does not fit its storage, whose size no key says",
    "aten::as_strided_": "the same",
    "aten::as_strided_copy": "the same",
    "aten::as_strided_scatter": "copies the whole of a storage",
    "aten::_lazy_clone": "the same",
    "aten::resize_": "grows a storage, or not, by its size",
    "aten::resize_as_": "the same",
    "aten::set_": "takes another storage, of any size",
    "aten::lift": "brings data in",
    "aten::lift_fresh": "brings data in",
    "aten::_local_scalar_dense": "reads a value",
    "aten::equal": "reads values",
    "aten::allclose": "reads values",
    "aten::is_nonzero": "reads a value",
    "aten::masked_select": "has as many elements as a mask has ones",
    "aten::_is_any_true": "answers torch's own questions, by who asks",
    "aten::_is_all_true": "the same",
    "aten::_linalg_check_errors": "reads a value",
    "aten::record_stream": "acts on a stream",
    "aten::pin_memory": "runs as another operator, which its values must follow",
    "aten::_pin_memory": "the same",
    "aten::scatter_": "refuses arguments that overlap, which no key says",
    "aten::scatter_add_": "the same",
    "aten::scatter_reduce_": "the same",
    "aten::index_add_": "the same",
    "aten::index_copy_": "the same",
    "aten::index_reduce_": "the same",
    "aten::index_fill_": "the same",
    "aten::median": "refuses where torch.use_deterministic_algorithms is on, which no key says",
    "aten::nanmedian": "the same",
    "aten::mode": "the same",
    "aten::histc": "the same",
    "aten::max_unpool2d": "the same",
    "aten::max_unpool3d": "the same",
}


class Form(NamedTuple):
    """The calls of one operator that pass the same arguments, in the same way."""

    key_of: KeyFunction
    recipes: dict[tuple[Any, ...], Recipe]  # what the hot path reads; empty while checking
    checked: dict[tuple[Any, ...], Recipe]  # the same, while checking


class _Settings:
    """Read from the environment once, at import; tests set them."""

    def __init__(self) -> None:
        self.enabled = _switch("TORCHFAKE_CACHE", default=True)
        self.checking = _switch("TORCHFAKE_CHECK_CACHE", default=False)
        if self.checking and not self.enabled:
            raise ValueError("TORCHFAKE_CHECK_CACHE=1 has nothing to check with TORCHFAKE_CACHE=0")


def _switch(name: str, *, default: bool) -> bool:
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"the environment variable {name} is 0 or 1, not {value!r}")
    return value == "1" if value else default


settings = _Settings()

forms: dict[int, dict[Any, Form]] = {}
"""By the operator's identity (its own hash is a Python call), then by the form of the call."""

_operators: dict[int, Any] = {}  # keeps operators alive, so that no other gets an id of theirs


class _Room:
    used = 0


_room = _Room()


def form_for(func: Any, args: Args, kwargs: Kwargs) -> Form | None:
    """The form of this call, made when it is first seen; None if such calls are not remembered."""
    if not settings.enabled or not _is_remembered(func):
        return None
    by_form = forms.get(id(func))
    if by_form is None:
        _operators[id(func)] = func
        by_form = forms.setdefault(id(func), {})
    name = form_of(args, kwargs)
    form = by_form.get(name)
    if form is None:
        key_of = key_function(func, args, kwargs)
        form = None if key_of is None else by_form.setdefault(name, Form(key_of, {}, {}))
    return form


def _is_remembered(func: Any) -> bool:
    plan = plan_of(func)
    if func.namespace != "aten" or plan.packet in _EXCLUDED or _has_out(func):
        return False
    return not plan.needs_values or plan.packet in TAKES_MASKS or has_rule(func)


def _has_out(func: Any) -> bool:
    arguments = [a for a in func._schema.arguments if a.kwarg_only and a.alias_info is not None]
    return any(a.alias_info.is_write for a in arguments)


def key_in(form: Form, args: Args, kwargs: Kwargs) -> tuple[Any, ...] | None:
    """The key of a call of that form; None if it has none."""
    try:
        key = form.key_of(args, kwargs)
        hash(key)
    except (TypeError, AttributeError):
        return None
    is_nan = any(isinstance(part, float) and part != part for part in key)
    return None if is_nan else key  # a nan would never be found again


def run_and_remember(
    run: Callable[[Any, Args, Kwargs], Any], func: Any, args: Args, kwargs: Kwargs
) -> Any:
    """What `run` gives, its recipe remembered where it has one."""
    form = form_for(func, args, kwargs)
    key = None if form is None else key_in(form, args, kwargs)
    if form is None or key is None:
        return run(func, args, kwargs)
    before = _recipes.snapshot(args, kwargs)
    result = run(func, args, kwargs)
    recipe = None if _has_mask(func, before) else _recipes.learn(func, args, kwargs, before, result)
    if settings.checking and key in form.checked:
        _check(form.checked[key], key, func, args, kwargs, before, result)
    if recipe is not None:
        _remember(form, key, recipe, room=1 + len(before) // 4)
    return result


def _has_mask(func: Any, before: list[Before]) -> bool:
    masks = (torch.bool, torch.uint8)
    if plan_of(func).packet not in TAKES_MASKS:
        return False
    return any(b.record.dtype in masks for b in before if b.place.argument != 0)


def _remember(form: Form, key: tuple[Any, ...], recipe: Recipe, room: int) -> None:
    recipes = form.checked if settings.checking else form.recipes
    if key not in recipes:
        if _room.used + room > MAX_RECIPES:
            clear()  # `form` too is no longer found
            return
        _room.used += room
    recipes[key] = recipe


def _check(
    recipe: Recipe,
    key: tuple[Any, ...],
    func: Any,
    args: Args,
    kwargs: Kwargs,
    before: list[Before],
    result: Any,
) -> None:
    """Compare what a hit would have given with what the kernel gave."""
    if not _recipes.holds(recipe):
        return
    wrong = disagreements(recipe, args, kwargs, before, result)
    if wrong:
        raise CacheError(
            f"torchfake's cache would have been wrong about {func} of {key}, where it has "
            f"{recipe}: {'; '.join(wrong)}. This is a bug of torchfake: please report it; "
            "TORCHFAKE_CACHE=0 runs without the cache"
        )


def clear() -> None:
    """Forget everything."""
    forms.clear()
    _operators.clear()
    _room.used = 0


def count() -> int:
    """How many recipes are held, large ones counted as several."""
    return _room.used
