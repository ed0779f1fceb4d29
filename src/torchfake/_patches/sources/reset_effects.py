"""What a reset of a layer does to its parameters, and what follows for layers of other sizes.

Input: a layer, and what resets it. Output: what that did, as a record that repeats it for another
layer: :class:`Reset` for plain fakes, :class:`Recorded` for deferred ones. Invariant: a record is
made only of a reset that does the same to each layer like this one; and it repeats all of it, or
nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torchfake._core import modes
from torchfake._core.storage import ConstantFill
from torchfake._patches.sources import effects
from torchfake._patches.sources.effects import Effect, Kept
from torchfake._patches.sources.effects import Family as FamilyOfTensors
from torchfake._random import lazy_generators
from torchfake._recording import fills
from torchfake._recording.fills import Fill
from torchfake._torch import autograd

_thread = modes.thread
_count_writes = autograd.count_writes


class Write(NamedTuple):
    """What a reset does to one parameter."""

    num_writes: int
    value: ConstantFill | None
    num_bytes: int  # of its storage


class Reset(NamedTuple):
    """What a reset does to plain fakes."""

    writes: tuple[Write, ...]  # to each parameter
    draws: tuple[Any, ...]

    def repeat(self, tensors: list[Any]) -> bool:
        """Do the same to the parameters of another layer; or nothing, if they are not as these."""
        if _thread.passes_over_together or not self._fits(tensors):
            return False
        self.repeat_on_new(tensors)
        return True

    def repeat_on_new(self, tensors: list[Any]) -> None:
        """The same of tensors that are as those: of parameters that have just been made."""
        for tensor, write in zip(tensors, self.writes, strict=True):
            _count_writes(tensor, write.num_writes)
            tensor._fake_storage.value = write.value
        for draw in self.draws:
            if type(draw) is Kept:
                draw.repeat(tensors[draw.position]._fake_storage)
            else:
                (_thread.draw_position or lazy_generators.position()).pass_over(draw)

    def _fits(self, tensors: list[Any]) -> bool:
        """Whether they have storages of their own, as large as those that were seen."""
        storages = [tensor._fake_storage for tensor in tensors]
        if len(storages) > 1 and len({*storages}) != len(storages):
            return False
        for tensor, storage, write in zip(tensors, storages, self.writes, strict=True):
            if storage.deferred is not None or storage.num_bytes != write.num_bytes:
                return False
            if tensor.is_inference():
                return False
        return True


class Recorded(NamedTuple):
    """What a reset records of deferred fakes."""

    fills: tuple[Fill, ...]  # of each parameter

    def repeat(self, tensors: list[Any]) -> bool:
        return fills.record_all_again(self.fills, tensors)


class Family:
    """Resets of layers that differ in the sizes of their tensors alone."""

    def __init__(self, num_tensors: int) -> None:
        self._of_tensors = [FamilyOfTensors() for _ in range(num_tensors)]
        self._is_one = True  # whether each reset draws for all tensors or for none, in their order

    def add(self, reset: Reset, tensors: list[Any]) -> None:
        """Note what a reset was seen to do."""
        num_draws = len(reset.draws)
        self._is_one = self._is_one and num_draws in (0, len(tensors))
        for i, (tensor, write) in enumerate(zip(tensors, reset.writes, strict=True)):
            draws = reset.draws[i : i + 1]
            effect = Effect(write.num_writes, draws, write.value, write.num_bytes)
            self._of_tensors[i].add(effect, tensor._fake_meta)

    def reset_of(self, tensors: list[Any]) -> Reset | None:
        """What the reset of another layer does; None if that does not follow."""
        if not self._is_one:
            return None
        writes: list[Write] = []
        draws: list[Any] = []
        for family, tensor in zip(self._of_tensors, tensors, strict=True):
            effect = family.effect_on(tensor._fake_meta)
            if effect is None:
                return None
            writes.append(Write(effect.num_writes, effect.value, effect.num_bytes))
            draws += effect.draws
        return Reset(tuple(writes), tuple(draws))


def observed(original: Any, layer: Any, tensors: list[Any]) -> Reset | None:
    """Reset a layer. What that did, if it does the same to each layer like this one."""
    stream = lazy_generators.position().lazy_generator()
    waiting, answers = stream.waiting(), modes.answerers()[0].answers
    before = [(tensor._version, tensor._fake_storage) for tensor in tensors]
    told, own = answers.times(), dict(vars(layer))
    original(layer)
    added = lazy_generators.position().lazy_generator().added_to(waiting)
    draws = effects.repeatable(added, tensors)
    writes = [_write_since(t, draws or (), *b) for t, b in zip(tensors, before, strict=True)]
    if draws is None or answers.times() != told or vars(layer) != own or None in writes:
        return None
    return Reset(tuple(writes), draws)  # type: ignore[arg-type]


def _write_since(tensor: Any, draws: tuple[Any, ...], version: int, storage: Any) -> Write | None:
    """What has been written to a tensor; None if that is something else each time, or nothing."""
    value = effects.value_beside(draws, tensor._fake_storage.value)
    if not draws:
        value = effects.as_fill(value, tensor._fake_meta.dtype)
    is_kept = value is not None and not isinstance(value, ConstantFill)
    if tensor._fake_storage is not storage or is_kept or tensor._version == version:
        return None
    return Write(tensor._version - version, value, storage.num_bytes)


def observed_record(original: Any, layer: Any, tensors: list[Any]) -> Recorded | None:
    attempt, own = fills.Attempt(*tensors), dict(vars(layer))
    original(layer)
    seen = attempt.fills()
    return Recorded(seen) if seen and vars(layer) == own else None
