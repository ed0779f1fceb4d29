"""The tables of recipes: which outcomes are cached, for how long, and the switches of the cache.

Input: calls that are not in the cache, and the function that runs them. Output: their results, and
their recipes in :data:`tables`, for later calls of equal signature and key. Invariant: at most
``MAX_RECIPES`` are cached, for the process, by all modes and threads; a table is only ever added to
or dropped whole, so that a thread that reads it sees all of a recipe or none.

Never cached, by rule: operators outside ``aten``, whose kernels may be Python code of the user;
operators whose result depends on values; those that write an ``out=``, which may grow and must not
overlap; calls with a real tensor, a generator or a symbolic size among the arguments, which have no
key. And by name, each with its reason: ``_EXCLUDED``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchfake._cache import other_sizes, rules
from torchfake._cache.apply import apply_recipe
from torchfake._cache.keys import KeyFunction, Layout, key_function, layout_of, signature_of
from torchfake._cache.learn import ArgumentSnapshot, learn_recipe, snapshot_arguments
from torchfake._cache.recipes import Recipe, guards_hold
from torchfake._cache.verify import disagreements
from torchfake._core.schemas import ACCEPTS_MASKS, traits_of
from torchfake._operators.meta_kernels.first_use import has_replacement
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._torch import backends
from torchfake.errors import CacheError

MAX_RECIPES = 50_000
"""About 1 KB each; a recipe of a long list of tensors is larger and counts as several."""

_EXCLUDED = {
    "aten::_has_same_storage_numel": "it depends on the sizes of storages, which keys leave out",
    "aten::_new_zeros_with_same_feature_meta": "the same",
    "aten::as_strided": "refuses what does not fit its storage, whose size is no part of keys",
    "aten::as_strided_": "the same",
    "aten::as_strided_copy": "the same",
    "aten::as_strided_scatter": "copies the whole of a storage",
    "aten::_lazy_clone": "the same",
    "aten::resize_": "grows a storage if that is too small",
    "aten::resize_as_": "the same",
    "aten::set_": "takes another storage, of any size",
    "aten::lift": "brings data in",
    "aten::lift_fresh": "brings data in",
    "aten::_local_scalar_dense": "reads a value",
    "aten::equal": "reads values",
    "aten::allclose": "reads values",
    "aten::is_nonzero": "reads a value",
    "aten::masked_select": "has as many elements as a mask has ones",
    "aten::_is_any_true": "answers torch's own checks, by the function that makes them",
    "aten::_is_all_true": "the same",
    "aten::_linalg_check_errors": "reads a value",
    "aten::record_stream": "acts on a stream",
    "aten::pin_memory": "runs as another operator, which propagates its values",
    "aten::_pin_memory": "the same",
    "aten::median": "refuses if torch.use_deterministic_algorithms is on, which is no part of keys",
    "aten::nanmedian": "the same",
    "aten::mode": "the same",
    "aten::histc": "the same",
    "aten::max_unpool2d": "the same",
    "aten::max_unpool3d": "the same",
    "aten::put": "the same",
    "aten::put_": "the same",
}


class SignatureTable(NamedTuple):
    """The recipes of one operator for calls of one signature, by key."""

    key_of: KeyFunction
    recipes: dict[Any, Recipe]  # what the hot path reads; empty while checking
    checked: dict[Any, Recipe]  # the same, while checking


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

tables: dict[int, dict[Any, SignatureTable]] = {}
"""By the operator's identity (its own hash is a Python call), then by the signature of the call."""

_operators: dict[int, Any] = {}
"""The operators of the tables, kept alive so that no other operator gets the identity of one."""


class _Size:
    """The size of all tables together."""

    num_recipes = 0  # those of long lists of tensors count as several


_size = _Size()


def table_for(func: Any, args: Args, kwargs: Kwargs) -> SignatureTable | None:
    """The table of this call's signature, made when it is first needed; None if such calls are
    never cached.
    """
    if not settings.enabled or not _is_cacheable(func):
        return None
    by_signature = tables.get(id(func))
    if by_signature is None:
        _operators[id(func)] = func
        by_signature = tables.setdefault(id(func), {})
    signature = signature_of(args, kwargs)
    table = by_signature.get(signature)
    if table is None:
        layout = layout_of(func, args, kwargs)
        if layout is not None:
            table = by_signature.setdefault(signature, _new_table(func, signature, layout))
    return table


def _new_table(func: Any, signature: Any, layout: Layout) -> SignatureTable:
    """An empty table; when it has been asked often, the operator gets a rule for the signature."""
    key_of = key_function(layout)

    def add_rule() -> None:
        by_signature = tables.get(id(func), {})
        if by_signature.get(signature) is table:
            by_signature[signature] = table._replace(key_of=key_of)
            rules.add(func, layout, table.recipes)

    table = SignatureTable(rules.counting(key_of, add_rule), {}, {})
    return table


def _is_cacheable(func: Any) -> bool:
    traits = traits_of(func)
    if func.namespace != "aten" or traits.packet in _EXCLUDED or _has_out(func):
        return False
    if traits.returns_uninitialized and backends.is_deterministic():
        return False  # it may be filled, and by what is no part of recipes
    return not traits.is_data_dependent or traits.packet in ACCEPTS_MASKS or has_replacement(func)


def _has_out(func: Any) -> bool:
    arguments = [a for a in func._schema.arguments if a.kwarg_only and a.alias_info is not None]
    return any(a.alias_info.is_write for a in arguments)


def key_for(table: SignatureTable, args: Args, kwargs: Kwargs) -> Any:
    """The key of a call of that signature; None if it has none."""
    try:
        key = table.key_of(args, kwargs)
        hash(key)
    except (TypeError, AttributeError):
        return None
    parts = key if isinstance(key, tuple) else ()
    has_nan = any(isinstance(part, (float, complex)) and part != part for part in parts)
    return None if has_nan else key  # a nan would never be found again


def run_and_cache(
    run: Callable[[Any, Args, Kwargs], Any], func: Any, args: Args, kwargs: Kwargs
) -> Any:
    """What `run` gives; its recipe is cached where it has one."""
    table = table_for(func, args, kwargs)
    key = None if table is None else key_for(table, args, kwargs)
    if table is None or key is None:
        return run(func, args, kwargs)
    sized = other_sizes.member(func, args, kwargs)
    followed = None if sized is None or settings.checking else other_sizes.follow(sized)
    if followed is not None:
        _add(table, key, followed, num_recipes=1)
        return apply_recipe(followed, func, args, kwargs)
    before = snapshot_arguments(args, kwargs)
    result = run(func, args, kwargs)
    has_mask = _indexes_with_mask(func, before)
    recipe = None if has_mask else learn_recipe(func, args, kwargs, before, result)
    if sized is not None and recipe is not None and not other_sizes.note(sized, recipe):
        _refuse(recipe, func, key, ["other sizes tell something else"])
    if settings.checking and key in table.checked:
        _check(table.checked[key], key, func, args, kwargs, before, result)
    if recipe is not None:
        _add(table, key, recipe, num_recipes=1 + len(before) // 4)
    return result


def _indexes_with_mask(func: Any, before: list[ArgumentSnapshot]) -> bool:
    mask_dtypes = (torch.bool, torch.uint8)
    if traits_of(func).packet not in ACCEPTS_MASKS:
        return False
    return any(b.record.dtype in mask_dtypes for b in before if b.path.argument != 0)


def _add(table: SignatureTable, key: Any, recipe: Recipe, num_recipes: int) -> None:
    recipes = table.checked if settings.checking else table.recipes
    if key not in recipes:
        if _size.num_recipes + num_recipes > MAX_RECIPES:
            clear()  # `table` too is dropped
            return
        _size.num_recipes += num_recipes
    recipes[key] = recipe


def _check(
    recipe: Recipe,
    key: Any,
    func: Any,
    args: Args,
    kwargs: Kwargs,
    before: list[ArgumentSnapshot],
    result: Any,
) -> None:
    """Compare what a hit would have given with what the kernel gave."""
    if not guards_hold(recipe):
        return
    _refuse(recipe, func, key, disagreements(recipe, args, kwargs, before, result))


def _refuse(recipe: Recipe, func: Any, key: Any, wrong: list[str]) -> None:
    if wrong and settings.checking:
        raise CacheError(
            f"torchfake's cache would have been wrong about {func} of {key}, where it has "
            f"{recipe}: {'; '.join(wrong)}. This is a bug of torchfake: please report it; "
            "TORCHFAKE_CACHE=0 runs without the cache"
        )


def clear() -> None:
    """Drop all tables."""
    rules.clear()
    tables.clear()
    other_sizes.clear()
    _operators.clear()
    _size.num_recipes = 0


def count() -> int:
    """How many recipes are cached, large ones counted as several."""
    return _size.num_recipes
