"""Lazy generators: where a generator would stand, had all draws of fakes been done.

Input: draws in the order of the program: some to be read, most of them only passed over. Output:
values for those that are read, and the state that the generator would have in eager mode.
Invariant: nothing is drawn before a value or a state is read; the global generator is read here,
and moved only where the program sets it or draws for real.

The lazy generator of a mode begins at the state of the global generator. The threads of the mode
share the lazy generator. It begins anew when the program has moved the global generator.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import torch

from torchfake._core import modes
from torchfake._random import generator_memory, mt19937
from torchfake._random.generator_memory import state_bytes
from torchfake._torch import dispatcher
from torchfake._torch.contexts import holding, uninterrupted

_Generator = torch.Generator  # the name may refer to a stand-in
_default = torch.default_generator
_default_memory = generator_memory.state_memory(_default)

lock = threading.RLock()
"""Held while a lazy generator is read or moved."""

_MAX_PENDING = 256
_MAX_PENDING_AFTER_CLEANING = 1 << 16
_MAX_SAVED_STATES = 4096


# What waits for a lazy generator. Each moves a generator as eager's kernel does.


@dataclass(slots=True)
class Words:
    """Draws that nobody reads, of which it is known how many words they take."""

    num_words: int

    def draw(self, generator: torch.Generator) -> None:
        if self.num_words:
            state = mt19937.jump_ahead(_Generator.get_state(generator), self.num_words)
            _Generator.set_state(generator, state)


class SingleNormals:
    """Normal numbers that are drawn one by one: in pairs, whose second one is kept for later."""

    __slots__ = ("num_elements",)

    def __init__(self, num_elements: int) -> None:
        self.num_elements = num_elements

    def draw(self, generator: torch.Generator) -> None:
        rest = self.num_elements
        if rest > 2 and mt19937.has_kept_normal(_Generator.get_state(generator)):
            _draw_normals(generator, 1)
            rest -= 1
        num_pairs = max(rest - 1, 0) // 2
        Words(num_pairs * mt19937.WORDS_OF_NORMAL_PAIR).draw(generator)
        _draw_normals(generator, rest - 2 * num_pairs)


def _draw_normals(generator: torch.Generator, num_elements: int) -> None:
    torch.empty(num_elements, dtype=torch.float64, device="cpu").normal_(generator=generator)


class Run:
    """A draw that nobody reads, and that has to be done to know how many words it takes."""

    __slots__ = ("draw",)

    def __init__(self, draw: Callable[[torch.Generator], Any]) -> None:
        self.draw = draw

    @classmethod
    def again(cls, draw: Callable[[torch.Generator], Any]) -> Run:
        """A run of `draw` without its errors and warnings, which the program has already seen. The
        numbers drawn before an error count.
        """

        def draw_quietly(generator: torch.Generator) -> None:
            with warnings.catch_warnings(), suppress(Exception):
                warnings.simplefilter("ignore")
                draw(generator)

        return cls(draw_quietly)


class Fill:
    """A small draw that somebody may read: memory that is filled from a generator."""

    __slots__ = ("_count", "_fill", "reader")

    def __init__(
        self,
        fill: Callable[[torch.Generator], torch.UntypedStorage],
        count: Callable[[], Any],
    ) -> None:
        self._fill = fill
        self._count = count  # gives Words, if these can be counted
        self.reader: Callable[[], Any] = lambda: None  # a weak reference to who gets the bytes

    def without_reader(self) -> Any:
        """The number of words drawn, if nobody can read the memory any more; else this fill."""
        counted = self._count() if self.reader() is None else None
        return counted if type(counted) is Words else self

    def draw(self, generator: torch.Generator) -> None:
        made, reader = self._fill(generator), self.reader()
        if reader is not None:
            reader.value = made


class LazyGenerator:
    """A generator that is moved when a value or a state is read, and the draws that wait for it.

    Threads add at the right end; what is taken from the left is taken by one that holds the lock.
    """

    __slots__ = ("_limit", "_pending", "generator")

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self._pending: deque[Any] = deque()
        self._limit = _MAX_PENDING

    def add(self, item: Any) -> None:
        """Have a draw take its place."""
        pending = self._pending
        pending.append(item)
        if len(pending) > self._limit:
            self._forget_unread()

    def _forget_unread(self) -> None:
        """Merge what nobody can read any more."""
        with holding(lock):
            self._merge()
            self._limit = max(_MAX_PENDING, 2 * len(self._pending))
            if self._limit > _MAX_PENDING_AFTER_CLEANING:
                self.settle()
                self._limit = _MAX_PENDING

    def _merge(self) -> None:
        pending = self._pending
        taken = pending.copy()
        removed = repeat(pending.popleft, len(taken))
        uninterrupted([*removed, partial(pending.extendleft, _merged(taken)[::-1])])

    def settle(self) -> None:
        """Do what waits, in the order of the program."""
        if not self._pending:
            return
        with holding(lock), dispatcher.as_eager():
            self._merge()
            while self._pending:
                self._pending[0].draw(self.generator)
                self._pending.popleft()

    def drop(self) -> None:
        """Forget what waits, but for what somebody may read: the generator is about to be set."""
        with lock:
            if any(type(item) is Fill and item.reader() is not None for item in self._pending):
                self.settle()
            self._pending.clear()

    def state(self) -> torch.Tensor:
        """The state that the generator has in eager mode."""
        with holding(lock):
            self.settle()
            return _Generator.get_state(self.generator)


def _merged(items: Iterable[Any]) -> list[Any]:
    """The draws of `items`, with consecutive draws that are only counted merged into one."""
    merged: list[Any] = []
    num_words = 0
    for item in items:
        rest = item if type(item) is not Fill else item.without_reader()
        if type(rest) is Words:
            num_words += rest.num_words
            continue
        if num_words:
            merged.append(Words(num_words))
            num_words = 0
        merged.append(rest)
    return [*merged, Words(num_words)] if num_words else merged


# The lazy generator of a thread.


class Position:
    """Where the threads of a mode stand: their lazy generator, and the global one that it left."""

    __slots__ = ("_global_memory", "_global_state", "_lazy", "_saved")

    def __init__(self) -> None:
        self._lazy: LazyGenerator | None = None
        self._global_memory = b""  # of the global generator, which does not move
        self._global_state: torch.Tensor | None = None
        self._saved: dict[bytes, torch.Tensor] = {}  # its states, by those that were read here

    def lazy_generator(self) -> LazyGenerator:
        """The lazy generator; a new one after the program has moved the global generator."""
        lazy = self._lazy
        if lazy is not None and _default_memory.raw == self._global_memory:
            return lazy
        with holding(lock):
            memory, state = _default_memory.raw, _Generator.get_state(_default)
            if lazy is None or state_bytes(state) != self._global_bytes():
                return self._begin()
            self._global_memory = memory  # moved, and put back
            return lazy

    def _global_bytes(self) -> bytes:
        assert self._global_state is not None
        return state_bytes(self._global_state)

    def pass_over(self, words: Words) -> None:
        """Have a draw take its place that nobody reads."""
        lazy = self._lazy
        if lazy is None or _default_memory.raw != self._global_memory:
            lazy = self.lazy_generator()
        lazy.add(words)

    def _begin(self, state: torch.Tensor | None = None) -> LazyGenerator:
        """Go on from `state`, or from where the global generator is."""
        # Its memory is read first, so that a move of another thread in between is noticed.
        memory, global_state = _default_memory.raw, _Generator.get_state(_default)
        with dispatcher.in_fake_slot(None):
            own = _Generator("cpu").set_state(global_state if state is None else state)
        self._lazy = lazy = LazyGenerator(own)
        self._global_memory, self._global_state = memory, global_state
        return lazy

    def restart(self) -> None:
        """Begin anew at the next draw: a seed was set, and it may be the same again."""
        self._lazy = None

    def read_state(self) -> torch.Tensor:
        """The state of eager's generator. If it is set again, the global one is where it is now."""
        with holding(lock):
            state = self.lazy_generator().state()
            assert self._global_state is not None
            self._saved[_digest(state)] = self._global_state
            while len(self._saved) > _MAX_SAVED_STATES:
                self._saved.pop(next(iter(self._saved)))
        return state

    def set_state(self, state: torch.Tensor, set_global: Callable[[torch.Tensor], Any]) -> None:
        """Go on from `state`. `set_global` moves the global generator to a state."""
        with holding(lock):
            is_known = isinstance(state, torch.Tensor) and mt19937.is_state(state)
            before = self._saved.get(_digest(state)) if is_known else None
            set_global(state if before is None else before)
            self._begin(state)

    def move_global(self) -> None:
        """Move the global generator to where the lazy generator stands."""
        with holding(lock):
            state = self.lazy_generator().state()
            if state_bytes(state) != self._global_bytes():
                _default.set_state(state)
                self._begin()


def _digest(state: torch.Tensor) -> bytes:
    return hashlib.blake2b(state_bytes(state), digest_size=16).digest()


def position() -> Position:
    """The draw position of this thread."""
    found: Position | None = modes.thread.draw_position
    if found is None:
        found = modes.thread.draw_position = Position()
    return found
