"""Lazy generators: the state that a generator would have if all draws of fakes were executed.

Input: draws in the order of the program: the values of a few are read, most only advance the
generator. Output: the values that are read, and the state that the generator would have in eager
mode. Invariant: nothing is drawn before a value or a state is read; the global generator is read
here, and moved only where the program sets its state or draws for real.

The lazy generator of a mode, which its threads share, begins at the state of the global generator.
A new lazy generator is made when the program has moved the global generator.
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
from torchfake._torch.contexts import holding, shared, uninterrupted

_Generator = torch.Generator  # the name may refer to a stand-in
_default = torch.default_generator
_default_memory = generator_memory.state_memory(_default)

lock = shared(threading.RLock())
"""Held while a lazy generator is read or moved."""

_MAX_PENDING = 256
_MAX_PENDING_AFTER_CLEANING = 1 << 16
_MAX_SAVED_STATES = 4096


# Pending draws of a lazy generator. Each moves a generator as eager's kernel does.


@dataclass(slots=True)
class Words:
    """Draws whose values nothing reads, and whose number of words is known."""

    num_words: int

    def draw(self, generator: torch.Generator) -> None:
        if self.num_words:
            state = mt19937.jump_ahead(_Generator.get_state(generator), self.num_words)
            _Generator.set_state(generator, state)


class SingleNormals:
    """Normal numbers drawn one by one: a pair at a time, of which the second is kept for later."""

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
    """A draw whose values nothing reads, and which is executed since its words are not counted."""

    __slots__ = ("draw",)

    def __init__(self, draw: Callable[[torch.Generator], Any]) -> None:
        self.draw = draw

    @classmethod
    def again(cls, draw: Callable[[torch.Generator], Any]) -> Run:
        """A run of `draw` without its errors and warnings, which the program has already seen. The
        words drawn before an error count.
        """

        def draw_quietly(generator: torch.Generator) -> None:
            with warnings.catch_warnings(), suppress(Exception):
                warnings.simplefilter("ignore")
                draw(generator)

        return cls(draw_quietly)


class Fill:
    """A small draw whose values may be read: a storage that is filled from a generator."""

    __slots__ = ("_count", "_fill", "reader")

    def __init__(
        self,
        fill: Callable[[torch.Generator], torch.UntypedStorage],
        count: Callable[[], Any],
    ) -> None:
        self._fill = fill
        self._count = count  # returns Words, if they can be counted
        self.reader: Callable[[], Any] = lambda: None  # a weak reference to the storage's owner

    def without_reader(self) -> Any:
        """The fill's Words, if nothing can read the storage any more; else the fill itself."""
        counted = self._count() if self.reader() is None else None
        return counted if type(counted) is Words else self

    def draw(self, generator: torch.Generator) -> None:
        made, reader = self._fill(generator), self.reader()
        if reader is not None:
            reader.value = made


class LazyGenerator:
    """A generator and its pending draws, which are executed when a value or a state is read.

    Any thread appends draws at the right; only the thread that holds the lock takes from the left.
    """

    __slots__ = ("_limit", "_pending", "generator")

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self._pending: deque[Any] = deque()
        self._limit = _MAX_PENDING

    def add(self, item: Any) -> None:
        """Append a pending draw."""
        pending = self._pending
        pending.append(item)
        if len(pending) > self._limit:
            self._forget_unread()

    def _forget_unread(self) -> None:
        """Merge draws whose values nothing can read; execute all draws if too many remain."""
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
        """Execute the pending draws, in the order of the program."""
        if not self._pending:
            return
        with holding(lock), dispatcher.as_eager():
            self._merge()
            while self._pending:
                self._pending[0].draw(self.generator)
                self._pending.popleft()

    def drop(self) -> None:
        """Drop the pending draws, since the generator is about to be set. If values of one may
        still be read, the draws are executed first.
        """
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
    """The lazy generator of a mode's threads, and the global generator's state at its beginning."""

    __slots__ = ("_global_memory", "_global_state", "_lazy", "_saved")

    def __init__(self) -> None:
        self._lazy: LazyGenerator | None = None
        self._global_memory = b""  # of the global generator, as long as it has not moved
        self._global_state: torch.Tensor | None = None
        self._saved: dict[bytes, torch.Tensor] = {}  # global states, by the states read then

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

    def skip_draw(self, words: Words) -> None:
        """Append a draw whose values nothing reads."""
        lazy = self._lazy
        if lazy is None or _default_memory.raw != self._global_memory:
            lazy = self.lazy_generator()
        lazy.add(words)

    def _begin(self, state: torch.Tensor | None = None) -> LazyGenerator:
        """Make a new lazy generator with `state`, or with the state of the global generator."""
        # Its memory is read first, so that a move of another thread in between is noticed.
        memory, global_state = _default_memory.raw, _Generator.get_state(_default)
        with dispatcher.in_fake_slot(None):
            own = _Generator("cpu").set_state(global_state if state is None else state)
        self._lazy = lazy = LazyGenerator(own)
        self._global_memory, self._global_state = memory, global_state
        return lazy

    def restart(self) -> None:
        """Make a new lazy generator at the next draw: a seed was set, perhaps to the same value."""
        self._lazy = None

    def read_state(self) -> torch.Tensor:
        """The state that the generator has in eager mode. The global generator's present state is
        saved with it: :meth:`set_state` restores both.
        """
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

    def lend_global(self) -> Callable[[], None]:
        """Move the global generator to the state of the lazy one, for real draws. The result is to
        be called after them: it puts the state back, if nothing was drawn.
        """
        before, lazy = _Generator.get_state(_default), self._lazy
        if lazy is not None:
            self.move_global()
        lent = _Generator.get_state(_default)

        def give_back() -> None:
            now = state_bytes(_Generator.get_state(_default))
            if now == state_bytes(lent) != state_bytes(before):
                with holding(lock):
                    _default.set_state(before)
                    self._begin(lent)

        return give_back

    def move_global(self) -> None:
        """Move the global generator to the state of the lazy generator."""
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
