"""Generators of accelerators that are not there.

Input: a device. Output: a generator that reports the device. Invariant: draws have positions in the
generator's own sequence, which its seed alone determines; no other generator moves.

The numbers are those of a CPU generator with the same seed: only the device itself could tell what
it would draw. C++ makes a new Python object for a generator among the arguments of an operator, so
fake generators are found by the address of the C++ generator.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from torchfake._random.lazy_generators import LazyGenerator
from torchfake._random.recorded_draws import RecordedDraws
from torchfake._torch import backends, dispatcher
from torchfake._torch.contexts import holding, shared

_CPU = torch.device("cpu")
_Generator = torch.Generator  # the name may refer to a stand-in
_NUM_STATE_BYTES = 16  # seed and offset: aten/src/ATen/cuda/CUDAGeneratorImpl.cpp
_MAX_POSITIONS = 256

_by_address: weakref.WeakValueDictionary[int, FakeGenerator] = weakref.WeakValueDictionary()
_defaults: dict[torch.device, FakeGenerator] = {}
_positions: dict[int, Any] = {}  # by the offsets that were returned for them
_lock = shared(threading.RLock())


class FakeGenerator(_Generator):
    """A generator that reports `device`. The C++ generator is a CPU's: it draws known values."""

    def __new__(cls, device: torch.device, follows_cpu: bool = False) -> FakeGenerator:
        return super().__new__(cls, device="cpu")  # type: ignore[call-arg]

    def __init__(self, device: torch.device, follows_cpu: bool = False) -> None:
        self._device = device
        # of all devices, when this generator was seeded; None for one that is not a default one
        self._seeding = backends.last_seeding() if follows_cpu else None
        self.recorded = RecordedDraws(_CPU)
        self._lazy = LazyGenerator(self)
        self._offset = 0  # a number for the position, if that was read; 0 at the beginning
        self._offset_of = self._position()
        _by_address[self._cdata] = self  # type: ignore[attr-defined]
        if follows_cpu:
            super().manual_seed(torch.initial_seed())

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    def manual_seed(self, seed: int) -> FakeGenerator:
        self._lazy.drop()
        super().manual_seed(seed)
        if self._seeding is not None:
            self._seeding = backends.last_seeding()
        self.recorded = RecordedDraws(_CPU)
        self._offset, self._offset_of = 0, self._position()
        return self

    def seed(self) -> int:
        seed = super().seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        if self._seeding is not None and self._seeding != backends.last_seeding():
            self.manual_seed(torch.initial_seed())  # a default one: torch.manual_seed seeds all
        return super().initial_seed()

    def lazy_generator(self) -> LazyGenerator:
        """The lazy generator for draws of plain fakes, which are not recorded."""
        self.initial_seed()
        return self._lazy

    def beginning(self) -> torch.Tensor:
        """The state of a CPU generator that has just been given this generator's seed."""
        return _Generator("cpu").manual_seed(self.initial_seed()).get_state()

    def get_offset(self) -> int:
        """A number for the position: 0 at the beginning, unchanged until the generator moves."""
        self.initial_seed()
        position = self._position()
        if not _is_same(position, self._offset_of):
            with holding(_lock):
                self._offset = 4 * (max(_positions, default=0) // 4 + 1)  # CUDA's are multiples
                self._offset_of = _positions[self._offset] = position
                while len(_positions) > _MAX_POSITIONS:
                    _positions.pop(next(iter(_positions)))
        return self._offset

    def set_offset(self, offset: int) -> FakeGenerator:
        """Move to the position for which `offset` was returned; to the beginning if unknown."""
        position = _positions.get(offset)
        self.manual_seed(self.initial_seed())
        if position is not None:
            native, *place = position
            super().set_state(native)
            self.recorded.move_to(self.beginning(), *place)
            self._offset, self._offset_of = offset, self._position()
        return self

    def get_state(self) -> torch.Tensor:
        numbers = self.initial_seed() % (1 << 64), self.get_offset()
        content = b"".join(number.to_bytes(8, "little") for number in numbers)
        with dispatcher.as_eager(), dispatcher.in_fake_slot(None):
            return torch.tensor(list(content), dtype=torch.uint8, device="cpu")

    def set_state(self, new_state: torch.Tensor) -> FakeGenerator:
        content = bytes(new_state.tolist())
        if len(content) != _NUM_STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")
        self.manual_seed(int.from_bytes(content[:8], "little"))
        self.set_offset(int.from_bytes(content[8:], "little"))
        return self

    def clone_state(self) -> FakeGenerator:
        return FakeGenerator(self._device).set_state(self.get_state())

    def graphsafe_get_state(self) -> FakeGenerator:
        return self

    def graphsafe_set_state(self, source: torch.Generator) -> FakeGenerator:
        return self.set_state(source.get_state())

    def __reduce__(self) -> Any:
        return _rebuilt, (self._device, self.get_state())

    def _position(self) -> tuple[torch.Tensor, Any, int]:
        return self._lazy.state(), self.recorded.anchor, self.recorded.offset_words


def _rebuilt(device: torch.device, state: torch.Tensor) -> FakeGenerator:
    return FakeGenerator(device).set_state(state)


def _is_same(one: Any, other: Any) -> bool:
    return one[1] is other[1] and one[2] == other[2] and torch.equal(one[0], other[0])


def fake_generator(generator: Any) -> FakeGenerator | None:
    """The fake generator with the C++ generator of `generator`; None if `generator` is real."""
    return None if generator is None else _by_address.get(generator._cdata)


def device_of(generator: torch.Generator) -> torch.device:
    """The device of a real generator, or the one that a fake generator reports."""
    return (fake_generator(generator) or generator).device


def default_generator(device: torch.device) -> FakeGenerator:
    """The default generator of a device that is not there, one for the whole process."""
    found = _defaults.get(device)
    if found is None:
        found = _defaults.setdefault(device, FakeGenerator(device, follows_cpu=True))
    return found
