"""Compares a recipe with the result of the kernel, for ``TORCHFAKE_CHECK_CACHE=1``.

Input: a recipe, and a call of its key before and after the kernel ran. Output: the differences, as
text. Invariant: the objects of the call are compared with the recipe, not a second recipe learned
from the call, since nothing can be learned from a call that passes one tensor twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchfake._cache.learn import ArgumentSnapshot
from torchfake._cache.recipes import (
    ArgumentPath,
    ArgumentResult,
    ConstantResult,
    NewResult,
    Recipe,
    ViewResult,
)
from torchfake._core import modes
from torchfake._core.memory import flat_view
from torchfake._core.metadata import Metadata, is_equal
from torchfake._core.storage import ConstantFill, MaybeNotFinite, Storage
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._tensor.fake_tensor import FakeTensor


def disagreements(
    recipe: Recipe, args: Args, kwargs: Kwargs, before: list[ArgumentSnapshot], result: Any
) -> list[str]:
    """The differences between the result of a call and that of `recipe`, a line each."""
    comparison = _Comparison(recipe, args, kwargs, before)
    return [
        *comparison.outcome(recipe.outcome, result),
        *comparison.arguments(),
        *_compare_fill(recipe.fill, result),
    ]


class _Comparison:
    """The comparison of one call with a recipe."""

    def __init__(
        self, recipe: Recipe, args: Args, kwargs: Kwargs, before: list[ArgumentSnapshot]
    ) -> None:
        self.recipe = recipe
        self.call = args, kwargs
        self.before = before
        self.new: dict[int, Storage] = {}  # the new storages, by the index that the recipe gives

    def outcome(self, outcome: Any, result: Any) -> Iterator[str]:
        """The differences between an outcome and a result."""
        if isinstance(outcome, NewResult):
            yield from self._new_result(outcome, result)
        elif isinstance(outcome, ViewResult):
            yield from self._view_result(outcome, result)
        elif isinstance(outcome, ArgumentResult):
            if self._find(outcome.argument) is not result:
                yield f"the result is not argument {outcome.argument}"
        elif isinstance(outcome, ConstantResult):
            expected = outcome.value
            if type(result) is not type(expected) or result != expected:
                yield f"the result is {result!r}, not {expected!r}"
        elif type(result) is not type(outcome) or len(result) != len(outcome):
            yield f"the result is {result!r}, not {len(outcome)} results"
        else:
            for part, item in zip(outcome, result, strict=True):
                yield from self.outcome(part, item)

    def _new_result(self, outcome: NewResult, result: Any) -> Iterator[str]:
        yield from _compare_metadata(outcome.record, result)
        if not isinstance(result, FakeTensor):
            return
        storage = result._fake_storage
        if any(storage is b.storage for b in self.before):
            yield "the result has the storage of an argument"
        if self.new.setdefault(outcome.storage_index, storage) is not storage:
            yield "two results have storages of their own"
        num_bytes = self.recipe.new_storage_bytes[outcome.storage_index]
        if storage.num_bytes != num_bytes:
            yield f"the new storage has {storage.num_bytes} bytes, not {num_bytes}"
        if storage.value is not None and not self.recipe.propagates_values:
            yield "the value of the result is known"

    def _view_result(self, outcome: ViewResult, result: Any) -> Iterator[str]:
        yield from _compare_metadata(outcome.record, result)
        base = self._find(outcome.base)
        if isinstance(result, FakeTensor) and result._fake_storage is not base._fake_storage:
            yield f"the result is no view of argument {outcome.base}"

    def arguments(self) -> Iterator[str]:
        """The differences in metadata, storages and values of the arguments after the call."""
        changed = {id(self._find(path)): record for path, record in self.recipe.metadata_changes}
        for b in self.before:
            for line in _compare_metadata(changed.get(id(b.fake), b.record), b.fake):
                yield f"argument {b.path}: {line}"
            if b.fake._fake_storage is not b.storage or b.storage.num_bytes != b.num_bytes:
                yield f"argument {b.path}: its storage is another"
            if not self.recipe.propagates_values and (b.storage.value is not None) != b.is_known:
                yield f"argument {b.path}: its value is known, or no longer"

    def _find(self, path: ArgumentPath) -> Any:
        return path.find(*self.call)


def _compare_metadata(record: Metadata, result: Any) -> Iterator[str]:
    if not isinstance(result, FakeTensor):
        yield f"{result!r} is no fake"
    elif not is_equal(result._fake_meta, record):
        yield f"{result._fake_meta}, not {record}"


def _compare_fill(fill: ConstantFill | None, result: Any) -> Iterator[str]:
    if fill is None or not isinstance(result, FakeTensor) or modes.is_recording():
        return
    storage = result._fake_storage
    if storage.num_bytes != fill.num_bytes:
        return  # a hit does not apply such a fill
    if isinstance(fill, MaybeNotFinite) and isinstance(storage.value, MaybeNotFinite):
        return  # both are marks, which are equal for calls of one key
    if storage.value is None or not _equal(storage.known_bytes(), fill.bytes()):
        yield f"the value of the result is {storage.value}, not {fill}"


def _equal(some: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    return torch.equal(flat_view(some, torch.uint8), flat_view(other, torch.uint8))
