"""Recorded draws: the position of each in the sequence of its generator.

Input: draws in recorded order, and the states of their generators. Output: a :class:`Draw` for
each, and the state in which eager mode would have left the generator. Invariant: the program's
generators are read here and moved to where eager mode would have left them, but never drawn from.

A position is an anchor and an offset in words. The anchor is a state that was read from the
generator, or the last draw that has to be replayed before it is known how many words it takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from torchfake._graph.digest import digest_of_op
from torchfake._graph.operations import Op
from torchfake._graph.rare_fields import RareField
from torchfake._random import mt19937
from torchfake._random.generator_memory import state_bytes, state_memory
from torchfake._torch import backends
from torchfake._torch.contexts import shared

lock = shared(threading.RLock())
"""Held while recorded draws are read or added."""

holds_lock: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]
"""Whether this thread holds the lock. ``threading.Condition`` calls the same private method."""


class Draw:
    """The random words of one operation: where they begin in the generator's sequence, how many."""

    __slots__ = ("_rare", "anchor", "device", "num_words", "offset_words")

    end_state = RareField[torch.Tensor | None](None)  # set when an uncounted draw is replayed
    anchor_digest = RareField[bytes | None](None)  # of the draw that was the anchor

    def __init__(
        self,
        anchor: torch.Tensor | Op,
        offset_words: int,
        num_words: int | None,
        device: torch.device,
    ) -> None:
        self.anchor = anchor  # a state, or an uncounted draw, after which the offset counts
        self.offset_words = offset_words
        self.num_words = num_words  # of this draw; None if it is uncounted
        self.device = device  # of the generator
        self._rare: dict[str, Any] | None = None

    @property
    def previous(self) -> Op | None:
        """The draw that is the anchor; None if the anchor is a state."""
        return self.anchor if isinstance(self.anchor, Op) else None

    @property
    def pending_draw(self) -> Op | None:
        """The draw that has to be replayed before the position of this one is known."""
        draw = self.previous
        return draw if draw is not None and draw.draw.end_state is None else None

    def resolve_anchor(self) -> torch.Tensor:
        """The anchor as a state; a draw that was the anchor is released. No draw may be pending."""
        anchor = self.anchor  # read once: several threads may call this
        if isinstance(anchor, Op):
            self.anchor_digest = digest_of_op(anchor)
            self.anchor = anchor = anchor.draw.end_state
        assert isinstance(anchor, torch.Tensor)
        return anchor


class RecordedDraws:
    """The position in a generator's sequence at which its last recorded draw ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.anchor: torch.Tensor | Op | None = None
        self.offset_words = 0
        self.is_synchronized = True  # the generator is at the end of the draws
        self._seen = b""  # the state of the generator when it was last read or moved
        self._memory = b""  # of torch's default generator, which tells sooner that it has not moved

    def add_draw_of(self, op: Op, generator: torch.Generator, num_words: int | None) -> None:
        """Record that `op` draws next, from `generator`."""
        memory = _default_memory.raw if self is default else b""  # first: another thread may draw
        self.add_draw(op, generator.get_state(), num_words)
        self._memory = memory

    def next_draw(self, num_words: int) -> Draw | None:
        """The next draw of torch's default generator; None if the generator has moved since the
        last recorded draw, or is at the end of the draws. No state is read.
        """
        if self.is_synchronized or _default_memory.raw != self._memory:
            return None
        draw = Draw(self.anchor, self.offset_words, num_words, self.device)  # type: ignore[arg-type]
        self.offset_words += num_words
        return draw

    def add_draw(self, op: Op, generator_state: torch.Tensor, num_words: int | None) -> None:
        """Record that `op` draws next, from a generator that has the state `generator_state`."""
        self._memory = b""
        if self.anchor is None or state_bytes(generator_state) != self._seen:
            self.restart_at(generator_state)  # the program has moved the generator
        assert self.anchor is not None
        op.draw = Draw(self.anchor, self.offset_words, num_words, self.device)
        self.is_synchronized = False
        if num_words is None:
            self.anchor, self.offset_words = op, 0
        else:
            self.offset_words += num_words

    def restart_at(self, generator_state: torch.Tensor) -> None:
        """Continue from the generator's own state."""
        self.anchor, self.offset_words = generator_state, 0
        self._seen, self.is_synchronized = state_bytes(generator_state), True

    def move_to(
        self, generator_state: torch.Tensor, anchor: torch.Tensor | Op | None, offset_words: int
    ) -> None:
        """Continue at an earlier position of a generator that is itself still at its seed."""
        self.restart_at(generator_state)
        self.anchor, self.offset_words = anchor, offset_words

    def end(self) -> tuple[Any, ...]:
        """Where the draws end, for :meth:`return_to`."""
        return self.anchor, self.offset_words, self._seen, self.is_synchronized

    def return_to(self, end: tuple[Any, ...]) -> None:
        """Continue at an :meth:`end`, with the generator in the state that it had then."""
        self.anchor, self.offset_words, self._seen, self.is_synchronized = end
        self._memory = b""

    def reset(self) -> None:
        """Have the next draw continue from the state that the generator has then."""
        self.anchor, self.is_synchronized = None, True

    @property
    def pending_draw(self) -> Op | None:
        """The draw that has to be replayed before the end of the draws is known."""
        draw = self.anchor if isinstance(self.anchor, Op) else None
        return draw if draw is not None and draw.draw.end_state is None else None

    def synchronize(self, generator: torch.Generator) -> None:
        """Move `generator` to the end of the draws. No draw may be pending."""
        state = self.anchor.draw.end_state if isinstance(self.anchor, Op) else self.anchor
        assert isinstance(state, torch.Tensor)
        if self.offset_words:
            state = mt19937.jump_ahead(state, self.offset_words)
        generator.set_state(state)
        self.restart_at(state)


_default_memory = state_memory(torch.default_generator)
default = RecordedDraws(torch.device("cpu"))
"""The recorded draws of torch's default CPU generator."""

_by_address: dict[int, RecordedDraws] = {}
"""By the address of the C++ generator: each dispatch makes another Python object for it, and before
torch 2.13 these have no weak references. An entry without a pending draw holds only the state in
which its generator was left, so it is also right for a later generator at the same address.
"""
_MAX_GENERATORS = 256  # from here on, entries without a pending draw are dropped


def draws_of(generator: torch.Generator) -> RecordedDraws:
    """The recorded draws of a real generator."""
    if generator is torch.default_generator:
        return default
    address = backends.generator_address(generator)
    draws = _by_address.get(address)
    if draws is None or draws.device != generator.device:
        if len(_by_address) >= _MAX_GENERATORS:
            _drop_synchronized()
        draws = _by_address[address] = RecordedDraws(generator.device)
    return draws


def _drop_synchronized() -> None:
    for address, draws in list(_by_address.items()):
        if draws.is_synchronized and not isinstance(draws.anchor, Op):
            del _by_address[address]


def reset(generator: torch.Generator) -> None:
    """Forget the draws of `generator`, whose state has been set."""
    draws_of(generator).reset()
