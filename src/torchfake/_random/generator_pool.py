"""Generators at the positions of draws, for a replay.

Input: draws, and offsets after their beginning. Output: generators at these positions. Invariant:
the generators are the replay's own; no other generator moves.

A position is reached in one of three ways: by a generator that a draw has left there; by a
generator so close before it that drawing the words between is quickest; or by a jump from the
nearest known state before it.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from typing import Any

import torch

from torchfake._random.draw_sizes import is_uniform_counted
from torchfake._random.mt19937 import jump_ahead
from torchfake._random.recorded_draws import Draw
from torchfake._torch.contexts import holding

MAX_SKIPPED_WORDS = 200_000
"""The most words that are drawn to save a jump. A word takes 4 ns, a jump 1.5 ms, and the first
jump of a length 6 ms."""

MAX_KNOWN_STATES = 256


class KnownStates:
    """States of generators that a replay has computed; shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[int, list[int]] = {}  # by the anchor's identity: in words, sorted
        self._states: OrderedDict[tuple[int, int], torch.Tensor] = OrderedDict()

    def state(self, anchor: torch.Tensor, offset_words: int) -> torch.Tensor:
        """The state `offset_words` after the state `anchor`."""
        with holding(self._lock):
            known = self._offsets.setdefault(id(anchor), [0])
            nearest = known[bisect.bisect_right(known, offset_words) - 1]
            state = self._states.get((id(anchor), nearest), anchor)
        if nearest != offset_words:
            state = jump_ahead(state, offset_words - nearest)
            self.add(anchor, offset_words, state)
        return state

    def add(self, anchor: torch.Tensor, offset_words: int, state: torch.Tensor) -> None:
        """Add a state; if there are too many, the oldest is dropped."""
        with holding(self._lock):
            known = self._offsets.setdefault(id(anchor), [0])
            if (id(anchor), offset_words) not in self._states and offset_words:
                bisect.insort(known, offset_words)
                self._states[id(anchor), offset_words] = state
            if len(self._states) > MAX_KNOWN_STATES:
                (oldest_anchor, offset), _ = self._states.popitem(last=False)
                self._offsets[oldest_anchor].remove(offset)


class _PositionedGenerator:
    """A generator and its position."""

    __slots__ = ("anchor", "generator", "offset_words")

    def __init__(self, device: torch.device) -> None:
        self.generator = torch.Generator(device=device)
        self.anchor: Any = None
        self.offset_words = 0


class GeneratorPool:
    """The generators of one thread of a replay."""

    def __init__(self, known: KnownStates) -> None:
        self._known = known
        self._generators: list[_PositionedGenerator] = []  # the one used last at the end
        self._scratch: torch.Tensor | None = None

    def at(self, draw: Draw, skip_words: int = 0) -> torch.Generator:
        """A generator `skip_words` after the beginning of `draw`, whose position is known.

        The caller reports what it draws with :meth:`advance_by` or :meth:`advance_to`.
        """
        anchor, target = draw.resolve_anchor(), draw.offset_words + skip_words
        positioned = self._near(anchor, target) or self._jump(draw.device, anchor, target)
        if positioned.offset_words != target:
            self._skip(positioned, target - positioned.offset_words)
        self._generators.remove(positioned)
        self._generators.append(positioned)
        return positioned.generator

    def advance_by(self, num_words: int) -> None:
        """Record that `num_words` words were drawn from the generator that was requested last."""
        self._generators[-1].offset_words += num_words

    def advance_to(self, state: torch.Tensor) -> None:
        """Record the state, after an uncounted draw, of the generator that was requested last."""
        self._generators[-1].anchor, self._generators[-1].offset_words = state, 0

    def publish_position(self) -> None:
        """Add the state of the generator used last to the known states of all threads."""
        last = self._generators[-1] if self._generators else None
        if last is not None and last.offset_words:
            self._known.add(last.anchor, last.offset_words, last.generator.get_state())

    def _near(self, anchor: torch.Tensor, target: int) -> _PositionedGenerator | None:
        """The generator nearest before a position, if it is close enough to draw the rest."""
        limit = MAX_SKIPPED_WORDS if is_uniform_counted() else 0
        nearest = None
        for positioned in self._generators:
            if positioned.anchor is anchor and 0 <= target - positioned.offset_words <= limit:
                nearest, limit = positioned, target - positioned.offset_words
        return nearest

    def _jump(
        self, device: torch.device, anchor: torch.Tensor, target: int
    ) -> _PositionedGenerator:
        """Jump with a new generator, or the least recently used one. Several are kept, for fused
        groups with several draws, which continue their sequences in turn.
        """
        same = [g for g in self._generators if g.generator.device == device]
        if len(same) < _MAX_GENERATORS:
            same.insert(0, _PositionedGenerator(device))
            self._generators.append(same[0])
        positioned = same[0]
        positioned.generator.set_state(self._known.state(anchor, target))
        positioned.anchor, positioned.offset_words = anchor, target
        return positioned

    def _skip(self, positioned: _PositionedGenerator, num_words: int) -> None:
        """Move a generator forward by drawing: an element of ``uniform_`` is a word."""
        if self._scratch is None:
            self._scratch = torch.empty(_SCRATCH_WORDS, dtype=torch.float32, device="cpu")
        for start in range(0, num_words, _SCRATCH_WORDS):
            block = self._scratch[: min(_SCRATCH_WORDS, num_words - start)]
            block.uniform_(generator=positioned.generator)
        positioned.offset_words += num_words


_MAX_GENERATORS = 3
_SCRATCH_WORDS = 16 * 1024
