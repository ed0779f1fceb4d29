"""Where in a generator's stream each recorded draw begins.

Enters: draws in the order they are recorded. Leaves: for each a :class:`Draw`, and the state that
eager would have left its generator in. Invariant: a generator is read here and never drawn from; it
is moved to where eager's would be, or, where that takes too long, elsewhere.

A place in a stream is an anchor and a number of 32-bit words behind it. The anchor is a state that
was read, or the last draw that has to be done to know how many words it takes.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import torch

from torchfake import _mt19937
from torchfake._digest import digest_of_op
from torchfake._graph import Op

MAX_SETTLED_ELEMENTS = 1_000_000
"""Draws that cannot be counted are done for the generator's sake up to here, in elements."""

lock = threading.RLock()


class Draw:
    """The draws of one operation: where in its generator's stream they begin and end."""

    __slots__ = ("anchor", "behind", "device", "end", "taken", "words")

    def __init__(
        self, anchor: torch.Tensor | Op, words: int, taken: int | None, device: torch.device
    ) -> None:
        self.anchor = anchor
        self.words = words  # behind the anchor
        self.taken = taken  # by this draw, where that can be counted
        self.device = device  # of the generator
        self.end: torch.Tensor | None = None  # the state behind it, if it was run to be known
        self.behind: bytes | None = None  # the digest of the draw that was the anchor

    @property
    def before(self) -> Op | None:
        """The draw behind which this one begins, as long as it is held."""
        return self.anchor if isinstance(self.anchor, Op) else None

    @property
    def waits_for(self) -> Op | None:
        """The same, if it has to be done before it is known where this one begins."""
        return _unfinished(self.anchor)

    def settled_anchor(self) -> torch.Tensor:
        """The state that the words are behind of; the draw before is let go. Nothing must be waited
        for.
        """
        anchor = self.anchor  # several threads may be here at once
        if isinstance(anchor, Op):
            self.behind = digest_of_op(anchor)
            self.anchor = anchor = anchor.draw.end
        assert isinstance(anchor, torch.Tensor)
        return anchor


def _unfinished(anchor: torch.Tensor | Op | None) -> Op | None:
    return anchor if isinstance(anchor, Op) and anchor.draw.end is None else None


def _state_at(anchor: torch.Tensor | Op, words: int) -> torch.Tensor:
    state = anchor.draw.end if isinstance(anchor, Op) else anchor
    assert isinstance(state, torch.Tensor)
    return _mt19937.advanced(state, words) if words else state


class Stream:
    """One generator's stream, as far as it has been recorded."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.anchor: torch.Tensor | Op | None = None
        self.words = 0
        self.is_settled = True
        self._seen = b""  # the generator's own state when it was last looked at
        self._to_settle = 0  # elements of draws that are not counted, behind the last known state

    def draw(self, op: Op, actual: torch.Tensor, taken: int | None, num_elements: int) -> None:
        """Take note of the draws of `op`, with the generator's own state `actual`."""
        if self.anchor is None or _bytes(actual) != self._seen:
            self.restart(actual)  # somebody else has moved the generator
        assert self.anchor is not None
        op.draw = Draw(self.anchor, self.words, taken, self.device)
        self.is_settled = False
        if taken is None:
            self.anchor, self.words = op, 0
            self._to_settle += num_elements
        else:
            self.words += taken

    def restart(self, actual: torch.Tensor) -> None:
        """Begin anew from the generator's own state."""
        self._begin_at(actual)
        self._seen, self.is_settled = _bytes(actual), True

    def forget(self) -> None:
        """Begin anew with the next draw, wherever the generator is then."""
        self.anchor, self.is_settled = None, True

    @property
    def waits_for(self) -> Op | None:
        """The draw that has to be done before the end of the stream is known."""
        return _unfinished(self.anchor)

    @property
    def is_cheap(self) -> bool:
        """Whether that takes little time."""
        return self._to_settle <= MAX_SETTLED_ELEMENTS

    def settle(self, generator: torch.Generator) -> None:
        """Move `generator` to where the draws end. Nothing must be waited for."""
        assert self.anchor is not None
        state = _state_at(self.anchor, self.words)
        self._begin_at(state)
        self._move(generator, state)

    def _begin_at(self, state: torch.Tensor) -> None:
        self.anchor, self.words, self._to_settle = state, 0, 0

    def give_up(self, generator: torch.Generator) -> None:
        """Move `generator` elsewhere, so that it shows when somebody moves it back."""
        self._move(generator, _mt19937.advanced(generator.get_state(), 1))

    def _move(self, generator: torch.Generator, state: torch.Tensor) -> None:
        generator.set_state(state)
        self._seen, self.is_settled = _bytes(state), True


def _bytes(state: torch.Tensor) -> bytes:
    """A generator's state to compare: past numpy(), which any mode makes ten times as slow."""
    return ctypes.string_at(state.data_ptr(), state.numel())


_default = Stream(torch.device("cpu"))
_streams: weakref.WeakKeyDictionary[torch.Generator, Stream] = weakref.WeakKeyDictionary()
_pretended: dict[torch.device, Stream] = {}


def stream_of(generator: torch.Generator) -> Stream:
    """The stream of a generator of this machine."""
    if generator is torch.default_generator:
        return _default
    stream = _streams.get(generator)
    if stream is None:
        stream = _streams[generator] = Stream(generator.device)
    return stream


def forget(generator: torch.Generator) -> None:
    """Begin anew with the next draw of `generator`: somebody has set its state."""
    stream_of(generator).forget()


def pretended_stream(device: torch.device) -> tuple[Stream, torch.Tensor]:
    """The stream of a CUDA device that is not there, and its state: a CPU generator with the same
    seed takes its place.
    """
    stream = _pretended.setdefault(device, Stream(torch.device("cpu")))
    generator: Any = torch.Generator(device="cpu")
    return stream, generator.manual_seed(torch.initial_seed()).get_state()
