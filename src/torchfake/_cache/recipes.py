"""Recipes: the outcome of an operation, in terms of the arguments of the call.

Input: the parts of an outcome, from ``_cache/learn``. Output: a :class:`Recipe`; if its outcome is
a single new wrapper, also a :class:`FastRecipe`, from which the hot path makes the wrapper.
Invariant: a recipe refers to an argument by its path in the call, and to a storage by an argument
on it, never to a tensor of the call from which the recipe was learned.

An outcome may depend on three facts that are not in its key, since few outcomes do: torch's default
dtype, the devices of the mode, and whether autograd's engine adds up gradients. A recipe that
depends on one has a guard, which is checked before the recipe is used. Three more conditions are
looked at where a recipe is applied: whether inference mode is on (``_dispatch``), whether the
storage that is filled has the size that was learned (`apply_fill`), and whether all values are
known from which a lazy one follows (`_lazy_value`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from torchfake._cache.keys import are_known
from torchfake._core import modes
from torchfake._core.metadata import DEFERRED_AS_META, MARKS, Metadata, with_mark
from torchfake._core.schemas import OpTraits, traits_of
from torchfake._core.storage import ConstantFill, StorageKind
from torchfake._eager_checks.values import checks_values
from torchfake._operators import constant_propagation, lazy_draws, lazy_values, random_values
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._random.lazy_generators import Words
from torchfake._tensor.fake_tensor import FakeTensor, wrapper_arguments
from torchfake._torch import dispatcher


class ArgumentPath(NamedTuple):
    """The place of an argument in a call."""

    argument: Any  # a position or a name
    element: int | None = None  # the index, if the argument is a list

    @property
    def is_position(self) -> bool:
        return isinstance(self.argument, int) and self.element is None

    def find(self, args: Args, kwargs: Kwargs) -> Any:
        argument = self.argument
        value = kwargs[argument] if isinstance(argument, str) else args[argument]
        return value if self.element is None else value[self.element]


class NewResult(NamedTuple):
    """A result with a new storage."""

    record: Metadata
    storage_index: int  # among the new storages of the call


class ViewResult(NamedTuple):
    """A result that views the storage of an argument."""

    record: Metadata
    base: ArgumentPath


class ArgumentResult(NamedTuple):
    """A result that is one of the arguments: the same Python object."""

    argument: ArgumentPath


class ConstantResult(NamedTuple):
    """A result that is no tensor."""

    value: Any


def flatten_outcome(outcome: Any) -> list[Any]:
    """The outcomes of single results in an outcome with nested lists and tuples, in order."""
    if type(outcome) in (list, tuple):
        return [part for item in outcome for part in flatten_outcome(item)]
    return [outcome]


@dataclass(slots=True)
class Recipe:
    """How to build the result of an operation from its arguments."""

    outcome: Any  # one of the four above, or a list or tuple of them
    op: Any  # the operator
    new_storage_bytes: tuple[int, ...] = ()  # the sizes of the new storages
    metadata_changes: tuple[tuple[ArgumentPath, Metadata], ...] = ()  # of arguments, afterwards
    propagates_values: bool = False  # values may be known: see _operators/constant_propagation
    fill: ConstantFill | None = None  # the value of the one storage that is new or overwritten
    has_lazy_value: bool = (
        False  # if all arguments are known, the result's value is computed when read
    )
    increments_versions: bool = False  # its kernel counts writes for autograd
    guard_default_dtype: torch.dtype | None = None  # guard: torch's default dtype must be this
    guard_devices: Any = None  # guard: current_devices() must return this
    guard_engine: bool = False  # guard: it is not autograd's engine that calls
    is_recorded: bool = False  # makes or writes deferred storages: see _recording/record
    words_to_skip: Words | None = None  # the words of the lazy generator that an unread draw skips
    has_plain_arguments: bool = True  # some fake is not deferred: its value may be overwritten

    new_kinds: tuple[StorageKind, ...] = field(default=(), compare=False)  # of the new storages
    # The FastRecipe for the hot path, as a plain tuple, which is unpacked three times as fast:
    fast: tuple[Any, ...] | None = field(default=None, compare=False)
    returned_argument: int | None = field(default=None, compare=False)  # which one is the result
    # Sets the value of the first argument, if that is the result; False if it cannot be set:
    write: Callable[[Args], bool] | None = field(default=None, compare=False)
    # (fast, returned_argument) for deferred fakes, whose values the recipe does not have to set:
    for_deferred: tuple[FastRecipe | None, int | None] = field(default=(None, None), compare=False)

    # The traits of the operator, if every tensor is passed by position and not in a list:
    recordable: OpTraits | None = field(default=None, compare=False)
    # The RecordingRecipe, made when it is first read; None if the call cannot be recorded by one:
    recording: RecordingRecipe | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.new_kinds = self._kinds_of_new_storages()
        fast = self._derive_fast_path()
        self.for_deferred = fast, self.returned_argument
        passes_over = self.words_to_skip is not None
        is_computed_now = self.computes_values and not self.has_lazy_value
        if fast is not None and not (self.is_recorded or passes_over or is_computed_now):
            self.fast = (*fast,)
        if self.is_recorded or (is_computed_now and not passes_over):
            self.returned_argument = None
        if self.words_to_skip is not None:
            self.write = partial(_draw, self.words_to_skip)
        elif self.fill is not None:
            self.write = partial(_fill, self.fill)
        elif self.has_lazy_value:
            is_random = traits_of(self.op).is_random
            write = lazy_draws.draw_whole_lazily if is_random else constant_propagation.write_lazily
            self.write = partial(write, self.op)

    def __getattr__(self, name: str) -> Any:
        if name != "recording":
            raise AttributeError(name)
        traits = self.recordable
        self.recording = None if traits is None else recording_recipe(self, traits)
        return self.recording

    @property
    def computes_values(self) -> bool:
        return self.propagates_values and self.fill is None

    def _kinds_of_new_storages(self) -> tuple[StorageKind, ...]:
        if not self.new_storage_bytes:
            return ()
        new = [each for each in flatten_outcome(self.outcome) if isinstance(each, NewResult)]
        device_of = {each.storage_index: each.record.device for each in new}
        sizes = enumerate(self.new_storage_bytes)
        return tuple(StorageKind(size, device_of[i], self.op) for i, size in sizes)

    def _derive_fast_path(self) -> FastRecipe | None:
        """Return the fast recipe, or set `returned_argument`, if that describes the outcome."""
        if self.metadata_changes or self.increments_versions or self.guard_devices is not None:
            return None
        if self.guard_engine:
            return None
        outcome = self.outcome
        if isinstance(outcome, NewResult):
            return _fast_recipe(self, outcome.record, None)
        if isinstance(outcome, ViewResult) and outcome.base.is_position:
            return _fast_recipe(self, outcome.record, outcome.base.argument)
        if isinstance(outcome, ArgumentResult) and outcome.argument.is_position:
            if self.guard_default_dtype is None:
                self.returned_argument = outcome.argument.argument
        return None


def apply_fill(fill: ConstantFill, fake: FakeTensor) -> bool:
    """Set the value of the storage of `fake`. False if the storage has another size than `fill`."""
    storage = fake._fake_storage
    if storage.num_bytes != fill.num_bytes:
        return False
    storage.value = fill
    return True


def _fill(fill: ConstantFill, args: Args) -> bool:
    return apply_fill(fill, args[0])


def _draw(words: Words, args: Args) -> bool:
    random_values.skip_words(words)
    args[0]._fake_storage.value = None
    return True


def _lazy_value(recipe: Recipe, args: Args, kwargs: Kwargs | None) -> Any:
    """The lazy value of a call's new storage; None unless the values of all arguments are known."""
    named = kwargs or {}
    if modes.is_recording() or not are_known((args, named)):
        return None
    record, num_bytes = recipe.outcome.record, recipe.new_storage_bytes[0]
    return lazy_values.lazy_value(recipe.op, args, named, record, num_bytes)


class FastRecipe(NamedTuple):
    """A recipe for one new wrapper, whose only guard is the default dtype."""

    record: Metadata
    wrapper: tuple[Any, ...]  # the arguments of make_wrapper
    base: Any  # the position of the argument that the result is a view of, or None
    guard_default_dtype: torch.dtype | None
    kind: Any  # the StorageKind of the new storage, if it has one
    value: ConstantFill | None
    make_value: Callable[[Args, Kwargs | None], Any] | None  # computes a value that is not a fill


def _fast_recipe(recipe: Recipe, record: Metadata, base: Any) -> FastRecipe | None:
    if record.conj or record.neg:  # these bits can only be set after the wrapper is made
        return None
    kind = recipe.new_kinds[0] if recipe.new_kinds else None
    wrapper = wrapper_arguments(record)
    make_value = (
        partial(_lazy_value, recipe) if recipe.has_lazy_value and kind is not None else None
    )
    guard = recipe.guard_default_dtype
    return FastRecipe(record, wrapper, base, guard, kind, recipe.fill, make_value)


class RecordingRecipe(NamedTuple):
    """A recipe for recording a call that returns one new wrapper or its first argument."""

    wrapper: tuple[Any, ...] | None  # arguments of make_wrapper; None: returns the first argument
    records: tuple[Metadata, ...]  # the metadata of the result, indexed by the mark of fakes
    kind: Any  # the StorageKind of the new storage, if it has one
    guard_default_dtype: torch.dtype | None
    is_empty: bool  # the result is uninitialized memory: no operation is recorded
    overwrites_first: bool
    is_random: bool
    product_kind: str | None
    needs_mode: bool  # outside a deferred mode, the result has a value, which is not set here


def recording_recipe(recipe: Recipe, traits: OpTraits) -> RecordingRecipe | None:
    """The recipe for recording calls of `recipe`; None if `_recording/record` has to do it."""
    fast, returned = recipe.for_deferred
    if not traits.is_recorded_plainly or (fast is None) is (returned is None):
        return None
    if checks_values(recipe.op):
        return None
    facts = traits.is_empty_factory, traits.overwrites_first, traits.is_random, traits.product_kind
    if fast is None:
        has_value = recipe.has_plain_arguments and recipe.computes_values
        is_first = returned == 0 and traits.mutated_names and not has_value
        return RecordingRecipe(None, (), None, None, *facts, False) if is_first else None
    if fast.base is not None or traits.mutated_names:
        return None
    records = tuple(with_mark(fast.record, mark) for mark in MARKS)
    place = fast.wrapper, records, fast.kind, fast.guard_default_dtype
    return RecordingRecipe(*place, *facts, recipe.computes_values)


# Guards.


def current_devices() -> Any:
    """The state that decides which devices exist, and which one ``cuda`` without an index is."""
    state = modes.current()
    if state is None:
        return None, False
    machine = state.accelerator
    own = machine and (machine.device_type, machine.num_devices, machine.current)
    return own, True, state.mark == DEFERRED_AS_META


def guards_hold(recipe: Recipe) -> bool:
    """Whether the default dtype, the devices and the caller are those of which `recipe` tells."""
    dtype = recipe.guard_default_dtype
    if dtype is not None and dtype is not torch.get_default_dtype():
        return False
    if recipe.guard_engine and dispatcher.is_called_by_engine():
        return False
    return recipe.guard_devices is None or recipe.guard_devices == current_devices()
