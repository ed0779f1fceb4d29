"""Recorded draws: their positions, and generators where eager mode would leave them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchfake._graph.operations import Op
from torchfake._random import recorded_draws
from torchfake._random.mt19937 import jump_ahead
from torchfake._random.recorded_draws import RecordedDraws

CPU = torch.device("cpu")


def new_op() -> Op:
    return Op(torch.ops.aten.rand.default, ([3],), {}, None)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_counted_draws_have_offsets() -> None:
    generator, draws = seeded(1), RecordedDraws(CPU)
    first, second = new_op(), new_op()
    anchor = generator.get_state()
    draws.add_draw(first, anchor, num_words=7)
    draws.add_draw(second, generator.get_state(), num_words=5)
    assert (first.draw.offset_words, second.draw.offset_words) == (0, 7)
    assert second.draw.resolve_anchor() is first.draw.resolve_anchor() is anchor
    assert second.draw.pending_draw is second.draw.previous is None
    assert not draws.is_synchronized
    draws.synchronize(generator)
    assert draws.is_synchronized
    assert torch.equal(generator.get_state(), jump_ahead(anchor, 12))


def test_an_uncounted_draw_is_the_anchor_of_the_next() -> None:
    generator, draws = seeded(1), RecordedDraws(CPU)
    first, second = new_op(), new_op()
    draws.add_draw(first, generator.get_state(), num_words=None)
    draws.add_draw(second, generator.get_state(), num_words=5)
    assert second.draw.previous is second.draw.pending_draw is draws.pending_draw is first
    end_state = first.draw.end_state = seeded(2).get_state()  # a replay has run it
    assert second.draw.pending_draw is draws.pending_draw is None
    assert second.draw.previous is first
    assert second.draw.resolve_anchor() is end_state
    assert second.draw.previous is None  # released
    assert second.draw.anchor_digest is not None
    draws.synchronize(generator)
    assert torch.equal(generator.get_state(), jump_ahead(end_state, 5))


def test_a_generator_that_the_program_moved() -> None:
    """The next draw begins at its own state."""
    generator, draws = seeded(1), RecordedDraws(CPU)
    draws.add_draw(new_op(), generator.get_state(), num_words=7)
    draws.synchronize(generator)
    generator.manual_seed(5)
    op = new_op()
    draws.add_draw(op, generator.get_state(), num_words=7)
    assert op.draw.offset_words == 0
    assert torch.equal(op.draw.resolve_anchor(), seeded(5).get_state())


def test_reset() -> None:
    generator = seeded(1)
    draws = recorded_draws.draws_of(generator)
    draws.add_draw(new_op(), generator.get_state(), num_words=7)
    recorded_draws.reset(generator)
    assert draws.is_synchronized
    op = new_op()
    draws.add_draw(op, generator.get_state(), num_words=7)
    assert op.draw.offset_words == 0


def test_each_generator_has_its_draws() -> None:
    generator = seeded(1)
    assert recorded_draws.draws_of(generator) is recorded_draws.draws_of(generator)
    assert recorded_draws.draws_of(generator) is not recorded_draws.draws_of(seeded(1))
    default = recorded_draws.draws_of(torch.default_generator)
    assert default is recorded_draws.draws_of(torch.default_generator)


def test_draws_are_found_by_other_objects_of_the_same_generator() -> None:
    """Dispatch makes one for each call; a later generator at the address has a state of its own."""
    generator = seeded(1)
    draws = recorded_draws.draws_of(generator)
    draws.add_draw(new_op(), generator.get_state(), num_words=3)
    draws.synchronize(generator)
    other: Any = SimpleNamespace(_cdata=generator._cdata, device=CPU)
    assert recorded_draws.draws_of(other) is draws
    op = new_op()
    draws.add_draw(op, seeded(1).get_state(), num_words=7)
    assert op.draw.previous is None


def test_draws_that_are_synchronized_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_draws, "_by_address", {})
    monkeypatch.setattr(recorded_draws, "_MAX_GENERATORS", 3)
    generators = [seeded(1) for _ in range(8)]
    pending = recorded_draws.draws_of(generators[0])
    pending.add_draw(new_op(), generators[0].get_state(), num_words=None)
    for generator in generators:
        recorded_draws.draws_of(generator)
    assert len(recorded_draws._by_address) <= 3
    assert recorded_draws.draws_of(generators[0]) is pending
