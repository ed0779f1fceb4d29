"""The tables of recipes: which outcomes are cached, for how long, and the switches of the cache.

Input: calls that are not in the cache, and the function that runs them. Output: their results, and
their recipes in :data:`tables`, for later calls of equal signature and key. Invariant: all modes
and threads of the process share the tables, which hold at most ``MAX_RECIPES`` recipes; recipes are
only added, and tables dropped whole, so that no thread reads half a recipe.

Never cached are operators outside ``aten``, whose kernels may be Python code of the user; operators
whose result depends on values; operators with an ``out=``, which may grow and must not overlap;
sums that autograd's engine makes, if it may lay them otherwise; calls with a real tensor, a
generator or a symbolic size among the arguments, which have no key; and the operators in
``_EXCLUDED``, each for a reason.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchfake._cache import other_sizes, rules
from torchfake._cache.keys import KeyFunction, Layout, key_function, layout_of, signature_of
from torchfake._cache.learn import ArgumentSnapshot, learn_recipe, snapshot_arguments
from torchfake._cache.recipes import Recipe, guards_hold
from torchfake._cache.verify import disagreements
from torchfake._core.schemas import ACCEPTS_MASKS, traits_of
from torchfake._eager_checks.values import has_known_value
from torchfake._operators.composites.sums import sum_may_lie_otherwise
from torchfake._operators.meta_kernels.first_use import has_replacement
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._operators.result_strides import (
    takes_threads_into_account,
)
from torchfake._torch import backends, dispatcher
from torchfake.errors import CacheError

MAX_RECIPES = 50_000
"""A recipe takes about 1 KB; the recipe of a call with many tensors counts as several."""

_EXCLUDED = {
    "aten::_has_same_storage_numel": "it depends on the sizes of storages, which keys leave out",
    "aten::_new_zeros_with_same_feature_meta": "the same",
    "aten::as_strided_": "refuses what does not fit its storage, whose size is no part of keys",
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
    "aten::is_pinned": "asks the storage",
    "aten::is_set_to": "the same",
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
    recipes: dict[Any, Recipe]  # read by the hot path; empty under TORCHFAKE_CHECK_CACHE=1
    checked: dict[Any, Recipe]  # the recipes under TORCHFAKE_CHECK_CACHE=1


class _Settings:
    """The switches of the cache, read from the environment once, at import; tests set them."""

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

    num_recipes = 0  # recipes of calls with many tensors count as several


_size = _Size()


def table_for(func: Any, args: Args, kwargs: Kwargs) -> SignatureTable | None:
    """The table of the call's signature, made when first needed; None if calls are not cached."""
    is_filled = traits_of(func).returns_uninitialized and backends.is_deterministic()
    if not settings.enabled or is_filled:  # recipes lack the value of memory that torch fills
        return None
    signature = signature_of(args, kwargs)
    table = tables.get(id(func), {}).get(signature)
    if table is None and _is_cacheable(func):
        layout = layout_of(func, args, kwargs)
        if layout is not None:
            _operators[id(func)] = func
            by_signature = tables.setdefault(id(func), {})
            table = by_signature.setdefault(signature, _new_table(func, signature, layout))
    return table


def _new_table(func: Any, signature: Any, layout: Layout) -> SignatureTable:
    """Make an empty table, which adds a rule for the signature once it has been read often."""
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
    return not traits.is_data_dependent or traits.packet in ACCEPTS_MASKS or has_replacement(func)


def _has_out(func: Any) -> bool:
    arguments = [a for a in func._schema.arguments if a.kwarg_only and a.alias_info is not None]
    return any(a.alias_info.is_write for a in arguments)


def key_for(table: SignatureTable, args: Args, kwargs: Kwargs) -> Any:
    """The key of a call of the table's signature; None if the call has no key."""
    try:
        key = table.key_of(args, kwargs)
        hash(key)
    except (TypeError, AttributeError):
        return None
    has_nan = isinstance(key, tuple) and any(map(operator.ne, key, key))
    return None if has_nan else key  # NaN differs from itself: no lookup would find the key


def follow(func: Any, args: Args, kwargs: Kwargs) -> Recipe | None:
    """The recipe of a call as calls of other sizes decide it, now cached; None if they do not."""
    is_alone = settings.checking or _lies_by_more_than_key(func, args)
    sized = None if is_alone else other_sizes.member(func, args, kwargs)
    recipe = None if sized is None else other_sizes.follow(sized)
    table = None if recipe is None else table_for(func, args, kwargs)
    if recipe is None or table is None:
        return None
    _add(table, table.key_of(args, kwargs), recipe, num_recipes=1)
    return recipe


def run_and_cache(
    run: Callable[[Any, Args, Kwargs], Any], func: Any, args: Args, kwargs: Kwargs
) -> Any:
    """Run a call by `run`, and cache the recipe that its result teaches."""
    table = None if _lies_by_more_than_key(func, args) else table_for(func, args, kwargs)
    key = None if table is None else key_for(table, args, kwargs)
    if table is None or key is None:
        return run(func, args, kwargs)
    sized = other_sizes.member(func, args, kwargs)
    before = snapshot_arguments(args, kwargs)
    result = run(func, args, kwargs)
    reads_index = _indexes_with_mask(func, before) or has_known_value(func, args, kwargs)
    recipe = None if reads_index else learn_recipe(func, args, kwargs, before, result)
    if sized is not None and recipe is not None and not other_sizes.note(sized, recipe):
        _refuse(recipe, func, key, ["other sizes tell something else"])
    if settings.checking and key in table.checked:
        _check(table.checked[key], key, func, args, kwargs, before, result)
    if recipe is not None:
        _add(table, key, recipe, num_recipes=1 + len(before) // 4)
    return result


def _lies_by_more_than_key(func: Any, args: Args) -> bool:
    """Whether strides of the result depend on what neither keys nor guards tell."""
    if sum_may_lie_otherwise(func, args):
        return dispatcher.is_called_by_engine()
    return takes_threads_into_account(func, args)


def _indexes_with_mask(func: Any, before: list[ArgumentSnapshot]) -> bool:
    mask_dtypes = (torch.bool, torch.uint8)
    if traits_of(func).packet not in ACCEPTS_MASKS:
        return False
    return any(b.record.dtype in mask_dtypes for b in before if b.path.argument != 0)


def _add(table: SignatureTable, key: Any, recipe: Recipe, num_recipes: int) -> None:
    recipes = table.checked if settings.checking else table.recipes
    if key not in recipes:
        if _size.num_recipes + num_recipes > MAX_RECIPES:
            clear()  # drops `table` too
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
    """Compare the result that a hit would have returned with the kernel's."""
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
    """The number of cached recipes, where large ones count as several."""
    return _size.num_recipes
