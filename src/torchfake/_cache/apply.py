"""Builds the result of a call from a recipe, without running a kernel.

Input: a recipe whose guards hold, an operator, and arguments with the key of the recipe. Output:
the result that the kernel would return; arguments are changed as the kernel would change them.
Invariant: no meta tensor is made, and kernels run only to propagate the values of small tensors.
"""

from __future__ import annotations

from typing import Any

from torchfake._cache.recipes import (
    ArgumentResult,
    ConstantResult,
    NewResult,
    Recipe,
    ViewResult,
    apply_fill,
)
from torchfake._core import source_location
from torchfake._core.storage import Storage, storage_of_kind
from torchfake._operators import constant_propagation, random_values
from torchfake._operators.operator_call import Args, Call, Kwargs, increment_versions, output_device
from torchfake._tensor.fake_tensor import new_fake, rebind


def apply_recipe(recipe: Recipe, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Build the result of `func` from `recipe`, and change the arguments as `func` would."""
    new: list[Storage] = []
    if recipe.new_kinds:
        location = source_location.caller_location(3)
        new = [storage_of_kind(kind, location) for kind in recipe.new_kinds]
    result = _build(recipe.outcome, new, args, kwargs)
    is_filled = recipe.fill is not None and apply_fill(recipe.fill, result)
    if recipe.words_to_skip is not None:
        random_values.skip_words(recipe.words_to_skip)
        if isinstance(recipe.outcome, ArgumentResult):
            result._fake_storage.value = None
    elif recipe.propagates_values and not is_filled:
        call = Call(func, args, kwargs)
        call.device = output_device(call)
        constant_propagation.propagate_values(call, result)
    if recipe.increments_versions:
        increment_versions(Call(func, args, kwargs))
    for path, record in recipe.metadata_changes:
        fake = path.find(args, kwargs)
        rebind(fake, record, fake._fake_storage)
    return result


def _build(outcome: Any, new: list[Storage], args: Args, kwargs: Kwargs) -> Any:
    if isinstance(outcome, NewResult):
        return new_fake(outcome.record, new[outcome.storage_index])
    if isinstance(outcome, ViewResult):
        return new_fake(outcome.record, outcome.base.find(args, kwargs)._fake_storage)
    if isinstance(outcome, ArgumentResult):
        return outcome.argument.find(args, kwargs)
    if isinstance(outcome, ConstantResult):
        return outcome.value
    return type(outcome)([_build(part, new, args, kwargs) for part in outcome])
