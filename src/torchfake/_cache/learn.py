"""Learns a recipe by comparing the arguments of a call before and after the kernel ran.

Input: an operator, its arguments, a snapshot of the fakes among them, and the result. Output: a
:class:`Recipe`, or None if the outcome does not follow from the metadata of the arguments alone.
Invariant: no operator is run, and no argument or result is changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchfake._cache.keys import needs_all_values
from torchfake._cache.recipes import (
    ArgumentPath,
    ArgumentResult,
    ConstantResult,
    NewResult,
    Recipe,
    ViewResult,
    current_devices,
    flatten_outcome,
)
from torchfake._core.memory import covers
from torchfake._core.metadata import Metadata, is_dense
from torchfake._core.schemas import OpTraits, traits_of
from torchfake._core.storage import ConstantFill, Storage
from torchfake._operators import lazy_draws, random_values
from torchfake._operators.composites.sums import sum_may_lie_otherwise
from torchfake._operators.lazy_values import LazyValue
from torchfake._operators.operator_call import Args, Call, Kwargs, mutated_tensors
from torchfake._random.lazy_generators import Words
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._unknown_values import assumptions, finiteness

_CONSTANT_TYPES = (bool, int, float, str, type(None), torch.dtype)


class ArgumentSnapshot(NamedTuple):
    """The metadata, storage and knowledge of a fake among the arguments before the call."""

    path: ArgumentPath
    fake: FakeTensor
    record: Metadata
    storage: Storage
    num_bytes: int
    is_known: bool


def snapshot_arguments(args: Args, kwargs: Kwargs) -> list[ArgumentSnapshot]:
    """Take a snapshot of each fake among the arguments, which the operation may change."""
    found = []
    for name, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, FakeTensor):
            found.append(_snapshot(ArgumentPath(name), value))
        elif isinstance(value, (list, tuple)):
            tensors = [(i, v) for i, v in enumerate(value) if isinstance(v, FakeTensor)]
            found.extend(_snapshot(ArgumentPath(name, i), v) for i, v in tensors)
    return found


def _snapshot(path: ArgumentPath, fake: FakeTensor) -> ArgumentSnapshot:
    storage = fake._fake_storage
    is_known = storage.value is not None
    return ArgumentSnapshot(path, fake, fake._fake_meta, storage, storage.num_bytes, is_known)


def learn_recipe(
    func: Any, args: Args, kwargs: Kwargs, before: list[ArgumentSnapshot], result: Any
) -> Recipe | None:
    """Derive the recipe of a call that returned `result`; None if metadata alone does not decide
    its outcome.
    """
    traits = traits_of(func)
    reader = _OutcomeReader(before)
    outcome = reader.outcome_of(result)
    metadata_changes = reader.metadata_changes()
    if outcome is None or metadata_changes is None:
        return None
    if traits.is_view and not before:  # a view of a tensor that C++ made from a number
        return None
    if _has_empty_argument(traits, before) and not traits.is_view:
        return None
    new_bytes = tuple(storage.num_bytes for storage in reader.new_storages)
    propagates = _may_propagate_values(traits, before, outcome, new_bytes)
    call = Call(func, args, kwargs)
    assumed = _assumed_fill(call, before, outcome, new_bytes)
    # An argument that is returned keeps its dtype.
    has_dtype = isinstance(outcome, ArgumentResult) or _promotes_from_floats(traits, before)
    draws = traits.is_random and not any(b.record.mark for b in before)
    fill = _fill_of(traits, args, outcome, new_bytes) if propagates else assumed
    has_values = propagates or draws or assumed is not None or _leaves_mark(call, before, outcome)
    return Recipe(
        outcome=outcome,
        op=func,
        new_storage_bytes=new_bytes,
        metadata_changes=metadata_changes,
        propagates_values=has_values,
        increments_versions=traits.kernel_counts_writes and bool(traits.mutated_names),
        guard_default_dtype=None if has_dtype else torch.get_default_dtype(),
        guard_devices=current_devices() if _names_accelerator(args, kwargs) else None,
        guard_engine=sum_may_lie_otherwise(func, args),
        is_recorded=_is_recorded(traits, before, new_bytes),
        words_to_skip=_words_to_skip(func, args, kwargs, outcome) if draws else None,
        has_plain_arguments=not all(b.record.mark for b in before),
        fill=fill,
        has_lazy_value=fill is None and _has_lazy_value(call, before, outcome, result),
        recordable=traits if all(b.path.is_position for b in before) else None,
    )


def _has_lazy_value(call: Call, before: list[ArgumentSnapshot], outcome: Any, result: Any) -> bool:
    """Whether the value of the result, or of the first argument, is computed when it is read. Then
    this holds for every call of the key in which all arguments have known values.
    """
    if isinstance(outcome, NewResult):
        is_followed = all(b.fake._fake_storage.is_known for b in before)
        return is_followed and isinstance(result._fake_storage.value, LazyValue)
    if not isinstance(outcome, ArgumentResult) or call.kwargs:
        return False
    storage, record = result._fake_storage, result._fake_meta
    if not call.traits.is_random:
        value = storage.value if call.args and result is call.args[0] else None
        return isinstance(value, LazyValue) and value.is_result_of(call.func)
    is_whole = covers(record, storage.num_bytes) and record.device.type == "cpu"
    return is_whole and isinstance(storage.value, lazy_draws.LazyDraw)


def _words_to_skip(func: Any, args: Args, kwargs: Kwargs, outcome: Any) -> Words | None:
    """The words that each draw of this key takes; None if calls differ, or values are kept."""
    first = flatten_outcome(outcome)[0]
    if isinstance(first, NewResult):
        return random_values.words_to_skip(func, args, kwargs, first.record)
    if isinstance(first, ArgumentResult) and traits_of(func).overwrites_first:
        return random_values.words_to_skip(func, args, kwargs, args[0]._fake_meta)
    return None


def _is_recorded(
    traits: OpTraits, before: list[ArgumentSnapshot], new_bytes: tuple[int, ...]
) -> bool:
    touches_bytes = bool(new_bytes) or bool(traits.mutated_names)
    return touches_bytes and any(b.record.mark for b in before)


def _has_empty_argument(traits: OpTraits, before: list[ArgumentSnapshot]) -> bool:
    """Whether an argument has no elements and views a storage of unknown value, or is written:
    keys tell of storages, and the value of a tensor without elements is known whatever theirs is.
    """
    empty = [b for b in before if 0 in b.record.size and not b.record.mark]
    return bool(empty) and (bool(traits.mutated_names) or not all(b.is_known for b in empty))


# Outcome: the results, in terms of the arguments.


class _OutcomeReader:
    """Describes the result of one call in terms of its arguments."""

    def __init__(self, before: list[ArgumentSnapshot]) -> None:
        self.before = before
        self.path_of_fake = _unique_paths([(id(b.fake), b.path) for b in before])
        self.path_of_storage = _unique_paths([(id(b.storage), b.path) for b in before])
        self.new_storages: list[Storage] = []
        self._index_of_storage: dict[int, int] = {}  # of `new_storages`, by identity

    def outcome_of(self, result: Any) -> Any:
        """Describe `result` by outcomes (``_cache/recipes``); None if that is not possible."""
        if isinstance(result, FakeTensor):
            return self._outcome_of_fake(result)
        if isinstance(result, _CONSTANT_TYPES):
            return ConstantResult(result)
        if type(result) not in (list, tuple):
            return None
        parts = [self.outcome_of(item) for item in result]
        return None if None in parts else type(result)(parts)

    def _outcome_of_fake(self, fake: FakeTensor) -> Any:
        storage = fake._fake_storage
        if id(fake) in self.path_of_fake:
            path = self.path_of_fake[id(fake)]
            return None if path is None else ArgumentResult(path)
        if id(storage) in self.path_of_storage:
            base = self.path_of_storage[id(storage)]
            return None if base is None else ViewResult(fake._fake_meta, base)
        if storage.pinned is not None:
            return None
        index = self._index_of_storage.setdefault(id(storage), len(self.new_storages))
        if index == len(self.new_storages):
            self.new_storages.append(storage)
        return NewResult(fake._fake_meta, index)

    def metadata_changes(self) -> tuple[tuple[ArgumentPath, Metadata], ...] | None:
        """The arguments whose metadata the call changed; None if the call changed a storage too, or
        would have changed a smaller one.
        """
        for b in self.before:
            if b.fake._fake_storage is not b.storage or b.storage.num_bytes != b.num_bytes:
                return None
        changed = [b for b in self.before if b.fake._fake_meta is not b.record]
        if any(b.fake._fake_meta.end_bytes > b.record.end_bytes for b in changed):
            return None
        return tuple((b.path, b.fake._fake_meta) for b in changed)


def _unique_paths(paths: list[tuple[int, ArgumentPath]]) -> dict[int, ArgumentPath | None]:
    """Paths by object identity; None for an object with two: other calls may pass two objects."""
    found: dict[int, ArgumentPath | None] = {}
    for key, path in paths:
        found[key] = None if key in found else path
    return found


# Values: whether those of results may be known, and the value of a fill.


def _may_propagate_values(
    traits: OpTraits, before: list[ArgumentSnapshot], outcome: Any, new_bytes: tuple[int, ...]
) -> bool:
    """Whether a result or a written argument may have a known value: see ``propagate_values``."""
    new = [o for o in flatten_outcome(outcome) if isinstance(o, NewResult)]
    small = [o for o in new if known_values.keeps_value(new_bytes[o.storage_index], o.record.dtype)]
    if not new and not traits.mutated_names:
        return False
    if traits.returns_uninitialized and not traits.mutated_names:
        return any(not _is_inexact(o.record.dtype) for o in small)
    if any(b.is_known for b in before):
        return not needs_all_values(traits) or all(b.is_known for b in before)
    if traits.packet in random_values.LIKE_ITS_ARGUMENT:
        return any(_keeps_draw(o.record) for o in small)
    if traits.overwrites_first:
        is_small = len(before) == 1 and _is_small(before[0].record)
        return is_small and (not traits.is_random or _keeps_draw(before[0].record))
    return not before and bool(small)


def _keeps_draw(record: Metadata) -> bool:
    return random_values.keeps_draw(record.dtype, math.prod(record.size))


def _is_inexact(dtype: torch.dtype) -> bool:
    """Whether a dtype is floating or complex. Uninitialized memory of these has no known value."""
    return dtype.is_floating_point or dtype.is_complex


def _is_small(record: Metadata) -> bool:
    return known_values.keeps_value(record.num_bytes, record.dtype)


_FILL_NUMBERS: dict[str, Callable[[Args], Any]] = {
    "aten::zeros": lambda args: 0,
    "aten::_efficientzerotensor": lambda args: 0,
    "aten::zero_": lambda args: 0,
    "aten::ones": lambda args: 1,
    "aten::full": lambda args: args[1],
    "aten::fill_": lambda args: args[1],
}
"""The number that an operator fills a tensor with, from its positional arguments."""


def _fill_of(
    traits: OpTraits, args: Args, outcome: Any, new_bytes: tuple[int, ...]
) -> ConstantFill | None:
    """The value of a tensor filled with one number, which the kernel has accepted; else None."""
    packet = "aten::zeros" if traits.returns_uninitialized else traits.packet
    if packet not in _FILL_NUMBERS:
        return None
    number = _FILL_NUMBERS[packet](args)
    if type(number) not in (bool, int, float):
        return None  # of a complex number, keys do not tell the signs of zeros
    if isinstance(outcome, NewResult):
        return ConstantFill(number, outcome.record.dtype, new_bytes[outcome.storage_index])
    record = args[0]._fake_meta
    return ConstantFill(number, record.dtype, record.num_bytes) if is_dense(record) else None


def _leaves_mark(call: Call, before: list[ArgumentSnapshot], outcome: Any) -> bool:
    """Whether some result or written argument is not assumed to be finite."""
    if any(b.record.mark for b in before):
        return False
    new = [o.record for o in flatten_outcome(outcome) if isinstance(o, NewResult)]
    written = [t._fake_meta for t in mutated_tensors(call) if isinstance(t, FakeTensor)]
    of_each_dtype = {record.dtype: record for record in (*new, *written)}.values()
    return any(finiteness.result_value(call, record) is not None for record in of_each_dtype)


def _assumed_fill(
    call: Call, before: list[ArgumentSnapshot], outcome: Any, new_bytes: tuple[int, ...]
) -> ConstantFill | None:
    """The value to assume, or the mark to set, for the result of unknown arguments; else None."""
    if any(b.record.mark for b in before):
        return None
    if isinstance(outcome, ArgumentResult) and call.traits.overwrites_first and len(before) == 1:
        written = before[0].record
        return finiteness.result_value(call, written) if is_dense(written) else None
    if not isinstance(outcome, NewResult):
        return None
    if new_bytes[outcome.storage_index] != outcome.record.num_bytes:
        return None
    is_in_key = not before or not all(b.is_known for b in before)
    marked = finiteness.result_value(call, outcome.record) if is_in_key else None
    if marked is not None:
        return marked
    if before and not before[0].is_known and assumptions.is_with_itself(call):
        before = before[:1]
    if len(before) != 1 or before[0].is_known:
        return None
    return assumptions.fill_of_unknown(call, before[0].record, outcome.record)


# Guards: values that the outcome depends on and the key does not contain.


_USES_DEFAULT_DTYPE = frozenset({"aten::linspace", "aten::logspace"})
"""Operators whose result has the default dtype even if their arguments are floating tensors."""


def _promotes_from_floats(traits: OpTraits, before: list[ArgumentSnapshot]) -> bool:
    """Whether type promotion finds a floating dtype, and so does not use the default dtype."""
    are_floats = [_is_inexact(b.record.dtype) for b in before]
    if traits.packet in _USES_DEFAULT_DTYPE:
        return False
    return bool(are_floats) and (all(are_floats) if traits.is_foreach else any(are_floats))


def _names_accelerator(args: Args, kwargs: Kwargs) -> bool:
    devices = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.device)]
    return any(device.type != "cpu" for device in devices)
