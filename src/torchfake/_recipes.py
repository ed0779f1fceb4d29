"""The outcome of an operation, written down so that it can be had again without a kernel.

Enters: a call before and after it ran. Leaves: a :class:`Recipe`, and what it gives for other
arguments of the same metadata. Invariant: a recipe names arguments by their place in the call and
storages by the arguments that look at them, never a tensor of the call it was learned from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from torchfake import _device, _follow, _origin, _state, _values
from torchfake._call import Args, Call, Kwargs, count_writes, output_device
from torchfake._metadata import Filled, Metadata, Storage, bytes_spanned
from torchfake._ops import OpPlan, plan_of
from torchfake._tensor import FakeTensor, become, new_fake, wrapper_arguments


class Place(NamedTuple):
    """Where in a call an argument stands."""

    argument: Any  # a position or a name
    element: int | None = None  # of a list there

    @property
    def is_position(self) -> bool:
        return isinstance(self.argument, int) and self.element is None

    def find(self, args: Args, kwargs: Kwargs) -> Any:
        argument = self.argument
        value = kwargs[argument] if isinstance(argument, str) else args[argument]
        return value if self.element is None else value[self.element]


class Fresh(NamedTuple):
    """A result with a storage of its own: the one of that number among the new ones."""

    record: Metadata
    storage: int


class View(NamedTuple):
    """A result that looks at the storage of an argument."""

    record: Metadata
    base: Place


class Same(NamedTuple):
    """A result that is an argument."""

    argument: Place


class Constant(NamedTuple):
    """A result that is no tensor."""

    value: Any


_CONSTANTS = (bool, int, float, str, type(None), torch.dtype)


@dataclass(slots=True)
class Recipe:
    """How to make the result of an operation from its arguments."""

    outcome: Any  # one of the four above, or a list or tuple of them
    new_bytes: tuple[int, ...] = ()  # the sizes of the new storages
    becomes: tuple[tuple[Place, Metadata], ...] = ()  # arguments whose metadata it changes
    follows: bool = False  # values may be known: see torchfake._follow
    fill: Filled | None = None  # the value of the one new storage, or of one written as a whole
    counts_writes: bool = False  # a foreach, whose kernel counts the writes for autograd
    default_dtype: torch.dtype | None = None  # holds only while this is torch's default
    machine: Any = None  # holds only on this machine
    is_recorded: bool = False  # makes or writes something deferred: see torchfake._record

    short: Short | None = field(default=None, compare=False)  # the same for the hot path
    same: int | None = field(default=None, compare=False)  # and where the result is an argument
    unrecorded: tuple[Short | None, int | None] = field(default=(None, None), compare=False)

    def __post_init__(self) -> None:
        self._shorten()
        self.unrecorded = self.short, self.same
        if self.is_recorded:  # the hot path would not write it down
            self.short = self.same = None

    def _shorten(self) -> None:
        if self.becomes or self.counts_writes or self.machine is not None:
            return
        if self.follows and self.fill is None:
            return
        outcome = self.outcome
        if isinstance(outcome, Fresh):
            self.short = _short(self, outcome.record, None)
        elif isinstance(outcome, View) and outcome.base.is_position:
            self.short = _short(self, outcome.record, outcome.base.argument)
        elif isinstance(outcome, Same) and outcome.argument.is_position:
            self.same = outcome.argument.argument if self.default_dtype is None else None


class Short(NamedTuple):
    """A recipe for one new wrapper, that holds always or by its default dtype."""

    record: Metadata
    device: torch.device
    wrapper: tuple[Any, ...]
    base: Any  # position of the argument it is a view of, or None
    default_dtype: torch.dtype | None
    num_bytes: int
    value: Filled | None


def _short(recipe: Recipe, record: Metadata, base: Any) -> Short | None:
    if record.conj or record.neg:
        return None
    num_bytes = recipe.new_bytes[0] if recipe.new_bytes else 0
    place = (record, record.device, wrapper_arguments(record), base)
    return Short(*place, recipe.default_dtype, num_bytes, recipe.fill)


# Learning.


class Before(NamedTuple):
    """A fake among the arguments, as it was before the call."""

    place: Place
    fake: FakeTensor
    record: Metadata
    storage: Storage
    num_bytes: int
    is_known: bool


def snapshot(args: Args, kwargs: Kwargs) -> list[Before]:
    """The fakes among the arguments. An operation may change what they are."""
    found = []
    for name, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, FakeTensor):
            found.append(_before(Place(name), value))
        elif isinstance(value, (list, tuple)):
            tensors = [(i, v) for i, v in enumerate(value) if isinstance(v, FakeTensor)]
            found.extend(_before(Place(name, i), v) for i, v in tensors)
    return found


def _before(place: Place, fake: FakeTensor) -> Before:
    storage = fake._fake_storage
    known = storage.value is not None
    return Before(place, fake, fake._fake_meta, storage, storage.num_bytes, known)


def learn(
    func: Any, args: Args, kwargs: Kwargs, before: list[Before], result: Any
) -> Recipe | None:
    """The recipe of a call that has its result; None where its outcome is not the metadata's."""
    plan = plan_of(func)
    learning = _Learning(before)
    outcome = learning.outcome(result)
    becomes = learning.changes()
    if outcome is None or becomes is None:
        return None
    new_bytes = tuple(s.num_bytes for s in learning.new)
    follows = _may_follow(plan, before, outcome, new_bytes)
    return Recipe(
        outcome=outcome,
        new_bytes=new_bytes,
        becomes=becomes,
        follows=follows,
        counts_writes=plan.per_element and bool(plan.written_names),
        default_dtype=None if _has_floats(plan, before) else torch.get_default_dtype(),
        machine=_machine() if _names_device(args, kwargs) else None,
        is_recorded=_is_recorded(plan, before, new_bytes),
        fill=_fill(plan, args, outcome, new_bytes) if follows else None,
    )


def _is_recorded(plan: OpPlan, before: list[Before], new_bytes: tuple[int, ...]) -> bool:
    touches_bytes = bool(new_bytes) or bool(plan.written_names)
    return touches_bytes and any(b.record.mark for b in before)


class _Learning:
    """One result being taken apart."""

    def __init__(self, before: list[Before]) -> None:
        self.before = before
        self.places = _once([(id(b.fake), b.place) for b in before])
        self.bases = _once([(id(b.storage), b.place) for b in before])
        self.new: list[Storage] = []

    def outcome(self, result: Any) -> Any:
        """`result` as one of the four outcomes, or None."""
        if isinstance(result, FakeTensor):
            return self._of_fake(result)
        if isinstance(result, _CONSTANTS):
            return Constant(result)
        if type(result) not in (list, tuple):
            return None
        parts = [self.outcome(item) for item in result]
        return None if None in parts else type(result)(parts)

    def _of_fake(self, fake: FakeTensor) -> Any:
        storage = fake._fake_storage
        if id(fake) in self.places:
            place = self.places[id(fake)]
            return None if place is None else Same(place)
        if id(storage) in self.bases:
            base = self.bases[id(storage)]
            return None if base is None else View(fake._fake_meta, base)
        if storage.pinned is not None:
            return None
        if not any(storage is known for known in self.new):
            self.new.append(storage)
        return Fresh(fake._fake_meta, [storage is s for s in self.new].index(True))

    def changes(self) -> tuple[tuple[Place, Metadata], ...] | None:
        """The arguments that have other metadata now; None if storages changed too, or might have,
        had they been smaller.
        """
        for b in self.before:
            if b.fake._fake_storage is not b.storage or b.storage.num_bytes != b.num_bytes:
                return None
        changed = [b for b in self.before if b.fake._fake_meta is not b.record]
        if any(_reach(b.fake._fake_meta) > _reach(b.record) for b in changed):
            return None
        return tuple((b.place, b.fake._fake_meta) for b in changed)


def _reach(record: Metadata) -> int:
    return bytes_spanned(record.size, record.stride, record.offset, record.dtype.itemsize)


def _once(places: list[tuple[int, Place]]) -> dict[int, Place | None]:
    """Places by identity; None for what stands in two: no recipe can tell which is meant."""
    found: dict[int, Place | None] = {}
    for key, place in places:
        found[key] = None if key in found else place
    return found


def _may_follow(
    plan: OpPlan, before: list[Before], outcome: Any, new_bytes: tuple[int, ...]
) -> bool:
    """Whether a result, or what is written, could have a known value: see ``follow_values``."""
    fresh = [o for o in _flat(outcome) if isinstance(o, Fresh)]
    small = [o for o in fresh if _values.fits(new_bytes[o.storage], o.record.dtype)]
    if not fresh and not plan.written_names:
        return False
    if plan.is_uninitialized and not plan.written_names:
        return any(not _is_number(o.record.dtype) for o in small)
    if any(b.is_known for b in before):
        return True
    if plan.overwrites:
        return len(before) == 1 and _fits(before[0].record) and not _draws_floats(plan, before)
    return not before and bool(small)


def _draws_floats(plan: OpPlan, before: list[Before]) -> bool:
    record = before[0].record
    return plan.is_random and record.dtype.is_floating_point and len(record.size) > 0


def _is_number(dtype: torch.dtype) -> bool:
    """Whether nothing is known of memory of that dtype before it is written."""
    return dtype.is_floating_point or dtype.is_complex


def _fits(record: Metadata) -> bool:
    return _values.fits(record.num_bytes, record.dtype)


def _flat(outcome: Any) -> list[Any]:
    if type(outcome) in (list, tuple):
        return [part for item in outcome for part in _flat(item)]
    return [outcome]


_FILLS: dict[str, Callable[[Args], Any]] = {
    "aten::zeros": lambda args: 0,
    "aten::zero_": lambda args: 0,
    "aten::ones": lambda args: 1,
    "aten::full": lambda args: args[1],
    "aten::fill_": lambda args: args[1],
}


def _fill(plan: OpPlan, args: Args, outcome: Any, new_bytes: tuple[int, ...]) -> Filled | None:
    """The value of what is filled with one number, whose kernel has been run once and took it."""
    filled = "aten::zeros" if plan.is_uninitialized else plan.packet
    if filled not in _FILLS:
        return None
    number = _FILLS[filled](args)
    if not isinstance(number, (bool, int)) and not number:
        return None  # 0.0, or -0.0, which has the same key
    if not isinstance(number, (bool, int, float, complex)):
        return None
    if isinstance(outcome, Fresh):
        return Filled(number, outcome.record.dtype, new_bytes[outcome.storage])
    record = args[0]._fake_meta
    return Filled(number, record.dtype, record.num_bytes)


_MADE_OF_ENDS = frozenset({"aten::linspace", "aten::logspace"})


def _has_floats(plan: OpPlan, before: list[Before]) -> bool:
    """Whether promotion has a floating dtype to go by, and so never asks for the default one."""
    floats = [_is_number(b.record.dtype) for b in before]
    if plan.packet in _MADE_OF_ENDS:
        return False
    return bool(floats) and (all(floats) if plan.per_element else any(floats))


def _names_device(args: Args, kwargs: Kwargs) -> bool:
    devices = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.device)]
    return any(device.type != "cpu" for device in devices)


def _machine() -> Any:
    """What decides which devices there are, and which one ``cuda`` is."""
    state = _state.current()
    cuda = state.cuda if state is not None else None
    return (state is not None, cuda and (cuda.num_devices, cuda.current))


# Making the result again.


def holds(recipe: Recipe) -> bool:
    """Whether what no key says is as it was when `recipe` was learned."""
    dtype = recipe.default_dtype
    if dtype is not None and dtype is not torch.get_default_dtype():
        return False
    return recipe.machine is None or recipe.machine == _machine()


def make(recipe: Recipe, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of `func`, made as `recipe` says; arguments are changed as `func` would."""
    new: list[Storage] = []
    if recipe.new_bytes:
        device, place = _device_of(recipe), _origin.here(3)
        new = [Storage(num_bytes, device, func, place) for num_bytes in recipe.new_bytes]
    result = _make(recipe.outcome, new, args, kwargs)
    if recipe.follows and not (recipe.fill is not None and fills(recipe.fill, result)):
        call = Call(func, args, kwargs)
        call.device = output_device(call)
        _follow.follow_values(call, result)
    if recipe.counts_writes:
        count_writes(Call(func, args, kwargs))
    for changed, record in recipe.becomes:
        fake = changed.find(args, kwargs)
        become(fake, record, fake._fake_storage)
    return result


def fills(value: Filled, fake: FakeTensor) -> bool:
    """Let the storage of `fake` know its value, if that is the value of all of it."""
    storage = fake._fake_storage
    if storage.num_bytes != value.num_bytes:
        return False
    storage.value = value
    return True


def _make(outcome: Any, new: list[Storage], args: Args, kwargs: Kwargs) -> Any:
    if isinstance(outcome, Fresh):
        storage = new[outcome.storage]
        storage.device = outcome.record.device
        return new_fake(outcome.record, storage)
    if isinstance(outcome, View):
        return new_fake(outcome.record, outcome.base.find(args, kwargs)._fake_storage)
    if isinstance(outcome, Same):
        return outcome.argument.find(args, kwargs)
    if isinstance(outcome, Constant):
        return outcome.value
    return type(outcome)([_make(part, new, args, kwargs) for part in outcome])


def _device_of(recipe: Recipe) -> torch.device:
    for part in _flat(recipe.outcome):
        if isinstance(part, (Fresh, View)):
            return part.record.device
    return _device.CPU
