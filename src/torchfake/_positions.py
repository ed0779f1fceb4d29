"""Generators where recorded draws begin.

Enters: draws, and words behind their beginning. Leaves: generators that stand there. Invariant:
they are the replay's own; no other generator moves.

A place is reached in one of three ways: a generator that a draw has left there, one that has to
skip so few words that drawing them is quickest, or a jump from the nearest state before that is
known.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from typing import Any

import torch

from torchfake._mt19937 import advanced
from torchfake._streams import Draw
from torchfake._words import uniform_is_counted

MAX_SKIPPED_WORDS = 200_000
"""Drawing one takes 4 ns, a jump 1.5 ms, or 6 if its length is new."""

MAX_KNOWN = 256


class Known:
    """States that a replay has come to know; shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[int, list[int]] = {}  # by the anchor's identity: sorted words
        self._states: OrderedDict[tuple[int, int], torch.Tensor] = OrderedDict()

    def state(self, anchor: torch.Tensor, words: int) -> torch.Tensor:
        """The generator state `words` behind the state `anchor`."""
        with self._lock:
            known = self._places.setdefault(id(anchor), [0])
            before = known[bisect.bisect_right(known, words) - 1]
            state = self._states.get((id(anchor), before), anchor)
        if before != words:
            state = advanced(state, words - before)
            self.add(anchor, words, state)
        return state

    def add(self, anchor: torch.Tensor, words: int, state: torch.Tensor) -> None:
        """Take note of a state; the oldest is forgotten for it, when there are many."""
        with self._lock:
            known = self._places.setdefault(id(anchor), [0])
            if (id(anchor), words) not in self._states and words:
                bisect.insort(known, words)
                self._states[id(anchor), words] = state
            if len(self._states) > MAX_KNOWN:
                (of, place), _ = self._states.popitem(last=False)
                self._places[of].remove(place)


class _Placed:
    """A generator, and where it stands."""

    __slots__ = ("anchor", "generator", "words")

    def __init__(self, device: torch.device) -> None:
        self.generator = torch.Generator(device=device)
        self.anchor: Any = None
        self.words = 0


class Generators:
    """Those of one thread of a replay."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._placed: list[_Placed] = []  # the one used last at the end
        self._scratch: torch.Tensor | None = None

    def at(self, draw: Draw, words: int = 0) -> torch.Generator:
        """A generator that stands `words` behind the beginning of `draw`, which is known. Whoever
        draws from it says so with :meth:`drawn`.
        """
        anchor, target = draw.settled_anchor(), draw.words + words
        placed = self._near(anchor, target) or self._jumped(draw.device, anchor, target)
        if placed.words != target:
            self._skip(placed, target - placed.words)
        self._placed.remove(placed)
        self._placed.append(placed)
        return placed.generator

    def drawn(self, words: int) -> None:
        """Take note that so many were drawn from the generator that was asked for last."""
        self._placed[-1].words += words

    def drawn_to(self, state: torch.Tensor) -> None:
        """Take note of the state where an uncounted draw from that generator has ended."""
        self._placed[-1].anchor, self._placed[-1].words = state, 0

    def remember(self) -> None:
        """Make known to all threads where the generator used last stands."""
        placed = self._placed[-1] if self._placed else None
        if placed is not None and placed.words:
            self._known.add(placed.anchor, placed.words, placed.generator.get_state())

    def _near(self, anchor: torch.Tensor, target: int) -> _Placed | None:
        limit = MAX_SKIPPED_WORDS if uniform_is_counted() else 0
        near = [p for p in self._placed if p.anchor is anchor and 0 <= target - p.words <= limit]
        return max(near, key=lambda placed: placed.words, default=None)

    def _jumped(self, device: torch.device, anchor: torch.Tensor, target: int) -> _Placed:
        placed = self._free(device)
        placed.generator.set_state(self._known.state(anchor, target))
        placed.anchor, placed.words = anchor, target
        return placed

    def _free(self, device: torch.device) -> _Placed:
        """One that is no longer needed where it stands: chains with two draws go on with both."""
        same = [placed for placed in self._placed if placed.generator.device == device]
        if len(same) < _MAX_PLACED:
            self._placed.append(_Placed(device))
            return self._placed[-1]
        return same[0]

    def _skip(self, placed: _Placed, words: int) -> None:
        if self._scratch is None:
            self._scratch = torch.empty(_SCRATCH_WORDS, dtype=torch.float32, device="cpu")
        for start in range(0, words, _SCRATCH_WORDS):
            piece = self._scratch[: min(_SCRATCH_WORDS, words - start)]
            piece.uniform_(generator=placed.generator)
        placed.words += words


_MAX_PLACED = 3
_SCRATCH_WORDS = 16 * 1024
