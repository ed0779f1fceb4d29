"""The memory of a CPU generator, read to tell quickly whether the generator has moved.

Input: a CPU generator. Output: a function that reads the bytes of its state. Invariant: only memory
of the generator is read, and nothing is written.

``Generator.get_state()`` makes a tensor of 5,056 bytes, which takes as long as the rest of a small
draw. The fields of ``at::mt19937`` and the normal numbers that are kept lie together in the
generator (aten/src/ATen/CPUGeneratorImpl.h), at an offset that is found by searching for the words
of a known state. If the offset cannot be relied on, `state_memory` calls ``get_state()``.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Protocol

import torch

from torchfake._core import memory
from torchfake._random import mt19937
from torchfake._torch import backends, dispatcher, private_facts

_WORDS_BYTES = 4 * 624
_LARGEST_OFFSET = 512  # the search for the words ends here
_HEAD_BYTES = 24  # before the words: the seed, and the position among them
_TAIL_BYTES = 24  # after them: the normal numbers that are kept
_PROBED_BYTES = 64


class StateMemory(Protocol):
    """The parts of a generator's state that are read."""

    @property
    def raw(self) -> bytes:
        """Bytes that differ if the state of the generator differs."""


class _CopiedState:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    @property
    def raw(self) -> bytes:
        return state_bytes(self._generator.get_state())


def state_memory(generator: torch.Generator) -> StateMemory:
    """The memory of `generator`. The generator has to outlive the result."""
    if not FACT.holds():
        return _CopiedState(generator)
    offset = words_offset()
    assert offset is not None
    return _memory_at(generator, offset)


def _memory_at(generator: torch.Generator, offset: int) -> StateMemory:
    start = backends.generator_address(generator) + offset - _HEAD_BYTES
    num_bytes = _HEAD_BYTES + _WORDS_BYTES + _TAIL_BYTES
    return (ctypes.c_char * num_bytes).from_address(start)


def state_bytes(state: torch.Tensor) -> bytes:
    """The bytes of a generator's state, to be compared. ``numpy()`` is much slower in a mode."""
    return memory.bytes_at(state.data_ptr(), state.numel())


_OF_TORCH = frozenset({"aten", "prim", "prims", "quantized", "c10d", "_c10d_functional"})


def call_drawing_nothing(func: Any, args: Any, kwargs: Any, error: type[Exception]) -> Any:
    """Call an operator that by its tags does not draw. An operator of a library or of the program
    that draws nevertheless is refused: the draws after it would have other values than in eager
    mode. The default generator of the CPU is put back.
    """
    if getattr(func, "namespace", "aten") in _OF_TORCH:
        return func(*args, **kwargs)
    with backends.default_generator_kept() as default:
        before = state_bytes(default.get_state())
        result = func(*args, **kwargs)
        has_drawn = state_bytes(default.get_state()) != before
    if has_drawn:
        raise error(
            f"{func} has drawn random numbers, and its tags do not say so: draws after it would "
            "differ from eager's. Declare it with tags=torch.Tag.nondeterministic_seeded, which "
            "torch.library.custom_op and torch.library.define take"
        )
    return result


@lru_cache(maxsize=1)
def words_offset() -> int | None:
    """Where in a CPU generator its words begin, in bytes; None if they are not found."""
    generator = torch.Generator("cpu")
    generator.manual_seed(5489)
    words = mt19937.words_of(generator.get_state())
    start = backends.generator_address(generator)
    offset = memory.bytes_at(start, _LARGEST_OFFSET + _PROBED_BYTES).find(words[:_PROBED_BYTES])
    if offset < _HEAD_BYTES or memory.bytes_at(start + offset, len(words)) != words:
        return None
    return offset


def _shows_each_draw() -> bool:
    """Whether the words are found, and each kind of draw changes bytes around them."""
    offset = words_offset()
    if offset is None:
        return False
    generator = torch.Generator("cpu")
    memory = _memory_at(generator, offset)
    before = memory.raw
    with dispatcher.as_eager():
        torch.empty(1, device="cpu").uniform_(generator=generator)
        moved = memory.raw
        torch.empty(1, dtype=torch.float64, device="cpu").normal_(generator=generator)
    return len({before, moved, memory.raw}) == 3


FACT = private_facts.PrivateFact(
    "the state of a CPU generator lies at a fixed place of the generator",
    used_in="_random/generator_memory",
    without="The state is copied at each draw whose values are kept, which is slower",
    is_shortcut=True,
    check=_shows_each_draw,
)
