"""Whether a recipe would have given what a kernel gave: the work of ``TORCHFAKE_CHECK_CACHE=1``.

Enters: a recipe, and a call like those it is for, before and after its kernel ran. Leaves: what
they disagree on. Invariant: the call's own objects are compared, not another recipe learned of it,
since nothing can be learned of arguments that stand in a call twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchfake import _state
from torchfake._call import Args, Kwargs
from torchfake._memory import flat_view
from torchfake._metadata import Filled, Metadata, Storage
from torchfake._recipes import Before, Constant, Fresh, Place, Recipe, Same, View
from torchfake._tensor import FakeTensor


def disagreements(
    recipe: Recipe, args: Args, kwargs: Kwargs, before: list[Before], result: Any
) -> list[str]:
    """What `recipe` would have got wrong of a call that has its result, a line each."""
    comparison = _Comparison(recipe, args, kwargs, before)
    return [
        *comparison.of(recipe.outcome, result),
        *comparison.arguments(),
        *_filled(recipe.fill, result),
    ]


class _Comparison:
    """One call being compared."""

    def __init__(self, recipe: Recipe, args: Args, kwargs: Kwargs, before: list[Before]) -> None:
        self.recipe = recipe
        self.call = args, kwargs
        self.before = before
        self.new: dict[int, Storage] = {}  # by number

    def of(self, outcome: Any, result: Any) -> Iterator[str]:
        """One outcome against one result."""
        if isinstance(outcome, Fresh):
            yield from self._fresh(outcome, result)
        elif isinstance(outcome, View):
            yield from self._view(outcome, result)
        elif isinstance(outcome, Same):
            if self._find(outcome.argument) is not result:
                yield f"the result is not argument {outcome.argument}"
        elif isinstance(outcome, Constant):
            expected = outcome.value
            if type(result) is not type(expected) or result != expected:
                yield f"the result is {result!r}, not {expected!r}"
        elif type(result) is not type(outcome) or len(result) != len(outcome):
            yield f"the result is {result!r}, not {len(outcome)} results"
        else:
            for part, item in zip(outcome, result, strict=True):
                yield from self.of(part, item)

    def _fresh(self, outcome: Fresh, result: Any) -> Iterator[str]:
        yield from _metadata(outcome.record, result)
        if not isinstance(result, FakeTensor):
            return
        storage = result._fake_storage
        if any(storage is b.storage for b in self.before):
            yield "the result has the storage of an argument"
        if self.new.setdefault(outcome.storage, storage) is not storage:
            yield "two results have storages of their own"
        num_bytes = self.recipe.new_bytes[outcome.storage]
        if storage.num_bytes != num_bytes:
            yield f"the new storage has {storage.num_bytes} bytes, not {num_bytes}"
        if storage.value is not None and not self.recipe.follows:
            yield "the value of the result is known"

    def _view(self, outcome: View, result: Any) -> Iterator[str]:
        yield from _metadata(outcome.record, result)
        base = self._find(outcome.base)
        if isinstance(result, FakeTensor) and result._fake_storage is not base._fake_storage:
            yield f"the result is no view of argument {outcome.base}"

    def arguments(self) -> Iterator[str]:
        """What has become of the arguments."""
        becomes = {id(self._find(place)): record for place, record in self.recipe.becomes}
        for b in self.before:
            for line in _metadata(becomes.get(id(b.fake), b.record), b.fake):
                yield f"argument {b.place}: {line}"
            if b.fake._fake_storage is not b.storage or b.storage.num_bytes != b.num_bytes:
                yield f"argument {b.place}: its storage is another"
            if not self.recipe.follows and (b.storage.value is not None) != b.is_known:
                yield f"argument {b.place}: its value is known, or no longer"

    def _find(self, place: Place) -> Any:
        return place.find(*self.call)


def _metadata(record: Metadata, result: Any) -> Iterator[str]:
    if not isinstance(result, FakeTensor):
        yield f"{result!r} is no fake"
    elif result._fake_meta != record:
        yield f"{result._fake_meta}, not {record}"


def _filled(fill: Filled | None, result: Any) -> Iterator[str]:
    if fill is None or not isinstance(result, FakeTensor) or _state.is_recording():
        return
    storage = result._fake_storage
    if storage.num_bytes != fill.num_bytes:
        return  # no hit would have used it
    if storage.value is None or not _equal(storage.known_bytes(), fill.bytes()):
        yield f"the value of the result is {storage.value}, not {fill}"


def _equal(some: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    return torch.equal(flat_view(some, torch.uint8), flat_view(other, torch.uint8))
