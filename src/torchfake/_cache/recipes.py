"""What a recipe is: the outcome of an operation, in terms of the arguments of the call.

Input: the parts of an outcome, from ``_cache/learn``. Output: a :class:`Recipe`, and for those that
make one wrapper at most a :class:`FastRecipe`, which is all that the hot path reads. Invariant: a
recipe names arguments by their path in the call and storages by the arguments that view them, never
a tensor of the call it was learned from.

What a recipe depends on beyond its key are its guards: torch's default dtype, and the devices of
the mode. They cost nothing where a recipe has none; these values are no part of keys, since most
recipes do not depend on them.
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
from torchfake._core.schemas import OpTraits
from torchfake._core.storage import ConstantFill, StorageKind
from torchfake._operators import constant_propagation, lazy_draws, random_values
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._random.lazy_generators import Words
from torchfake._tensor.fake_tensor import FakeTensor, wrapper_arguments


class ArgumentPath(NamedTuple):
    """Which argument of a call is meant."""

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
    """A result with a storage of its own."""

    record: Metadata
    storage_index: int  # among the new storages of the call


class ViewResult(NamedTuple):
    """A result that views the storage of an argument."""

    record: Metadata
    base: ArgumentPath


class ArgumentResult(NamedTuple):
    """A result that is an argument, the same object."""

    argument: ArgumentPath


class ConstantResult(NamedTuple):
    """A result that is no tensor."""

    value: Any


def flatten_outcome(outcome: Any) -> list[Any]:
    """The single outcomes in an outcome, lists and tuples opened."""
    if type(outcome) in (list, tuple):
        return [part for item in outcome for part in flatten_outcome(item)]
    return [outcome]


@dataclass(slots=True)
class Recipe:
    """How to make the result of an operation from its arguments."""

    outcome: Any  # one of the four above, or a list or tuple of them
    op: Any  # the operator
    new_storage_bytes: tuple[int, ...] = ()  # the sizes of the new storages
    metadata_changes: tuple[tuple[ArgumentPath, Metadata], ...] = ()  # arguments it changes
    propagates_values: bool = False  # values may be known: see _operators/constant_propagation
    fill: ConstantFill | None = None  # value of the one new or wholly written storage
    is_lazy: bool = False  # where all values are known, that of the result is computed when read
    increments_versions: bool = False  # a foreach, whose kernel counts the writes for autograd
    guard_default_dtype: torch.dtype | None = None  # holds only while this is torch's default
    guard_devices: Any = None  # holds only while current_devices() is this
    is_recorded: bool = False  # makes or writes deferred storages: see _recording/record
    words_to_pass: Words | None = None  # that a draw without values takes of the lazy generator
    has_plain_arguments: bool = True  # fakes that are not deferred, whose values it may overwrite

    new_kinds: tuple[StorageKind, ...] = field(default=(), compare=False)  # of the new storages
    # The fields of a FastRecipe for the hot path: that takes three times as long to unpack
    fast: tuple[Any, ...] | None = field(default=None, compare=False)
    returned_argument: int | None = field(default=None, compare=False)  # position of the result
    # What it does to that argument, the first; False if it cannot:
    write: Callable[[Args], bool] | None = field(default=None, compare=False)
    # The same where it is recorded, for which values do not matter:
    unrecorded: tuple[FastRecipe | None, int | None] = field(default=(None, None), compare=False)

    # The operator, if all tensors are arguments by position:
    recordable: OpTraits | None = field(default=None, compare=False)
    # The same with what is recorded, if that takes nothing else; made when it is first needed:
    recording: RecordingRecipe | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.new_kinds = self._kinds_of_new_storages()
        fast = self._derive_fast_path()
        self.unrecorded = fast, self.returned_argument
        passes_over = self.words_to_pass is not None
        is_computed_now = self.computes_values and not self.is_lazy
        if fast is not None and not (self.is_recorded or passes_over or is_computed_now):
            self.fast = (*fast,)  # of the others, the hot path does nothing
        if self.is_recorded or (is_computed_now and not passes_over):
            self.returned_argument = None
        if self.words_to_pass is not None:
            self.write = partial(_draw, self.words_to_pass)
        elif self.fill is not None:
            self.write = partial(_fill, self.fill)
        elif self.is_lazy:
            self.write = partial(lazy_draws.draw_whole_lazily, self.op)

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
        new = [each for each in flatten_outcome(self.outcome) if isinstance(each, NewResult)]
        device_of = {each.storage_index: each.record.device for each in new}
        sizes = enumerate(self.new_storage_bytes)
        return tuple(StorageKind(size, device_of[i], self.op) for i, size in sizes)

    def _derive_fast_path(self) -> FastRecipe | None:
        """A fast recipe, or `returned_argument` set, if the hot path can do all there is to do."""
        if self.metadata_changes or self.increments_versions or self.guard_devices is not None:
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
    """Set the value of the storage of `fake`, if it is as large as what was filled."""
    storage = fake._fake_storage
    if storage.num_bytes != fill.num_bytes:
        return False
    storage.value = fill
    return True


def _fill(fill: ConstantFill, args: Args) -> bool:
    return apply_fill(fill, args[0])


def _draw(words: Words, args: Args) -> bool:
    random_values.pass_words(words)
    args[0]._fake_storage.value = None
    return True


def _lazy_value(recipe: Recipe, args: Args, kwargs: Kwargs | None) -> Any:
    """The value of the new storage of a call; None if it does not follow from those known."""
    named = kwargs or {}
    if modes.is_recording() or not are_known((args, named)):
        return None
    record, num_bytes = recipe.outcome.record, recipe.new_storage_bytes[0]
    return constant_propagation.lazy_value(recipe.op, args, named, record, num_bytes)


class FastRecipe(NamedTuple):
    """A recipe for one new wrapper, with no guard but the default dtype."""

    record: Metadata
    wrapper: tuple[Any, ...]  # the arguments of make_wrapper
    base: Any  # position of the argument it is a view of, or None
    guard_default_dtype: torch.dtype | None
    kind: Any  # the StorageKind of the new storage, if it has one
    value: ConstantFill | None
    make_value: Callable[[Args, Kwargs | None], Any] | None  # of one that depends on arguments


def _fast_recipe(recipe: Recipe, record: Metadata, base: Any) -> FastRecipe | None:
    if record.conj or record.neg:  # set on the wrapper after it is made
        return None
    kind = recipe.new_kinds[0] if recipe.new_kinds else None
    wrapper = wrapper_arguments(record)
    make_value = partial(_lazy_value, recipe) if recipe.is_lazy and kind is not None else None
    guard = recipe.guard_default_dtype
    return FastRecipe(record, wrapper, base, guard, kind, recipe.fill, make_value)


class RecordingRecipe(NamedTuple):
    """A recipe for one new wrapper, or for the first argument, and what is recorded of the call."""

    wrapper: tuple[Any, ...] | None  # the arguments of make_wrapper; None: the first argument
    records: tuple[Metadata, ...]  # of the result, by the mark of a deferred fake
    kind: Any  # the StorageKind of the new storage, if it has one
    guard_default_dtype: torch.dtype | None
    is_empty: bool  # memory that nobody has written: no operation
    overwrites_first: bool
    is_random: bool
    product_kind: str | None
    needs_mode: bool  # outside of modes, the result has a value


def recording_recipe(recipe: Recipe, traits: OpTraits) -> RecordingRecipe | None:
    """How to record a call of `recipe`, of which all tensors are arguments by position; None if it
    takes more than that.
    """
    fast, returned = recipe.unrecorded
    if not traits.is_recorded_plainly or (fast is None) is (returned is None):
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
    """What decides which devices there are, and which one ``cuda`` is."""
    state = modes.current()
    if state is None:
        return None, False
    machine = state.accelerator
    own = machine and (machine.device_type, machine.num_devices, machine.current)
    return own, True, state.mark == DEFERRED_AS_META


def guards_hold(recipe: Recipe) -> bool:
    """Whether the default dtype and the devices are those for which `recipe` was learned."""
    dtype = recipe.guard_default_dtype
    if dtype is not None and dtype is not torch.get_default_dtype():
        return False
    return recipe.guard_devices is None or recipe.guard_devices == current_devices()
