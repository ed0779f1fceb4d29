"""The memory of a CPU generator tells of every move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchfake._random import generator_memory

MOVES: dict[str, Callable[[torch.Generator], object]] = {
    "seed": lambda g: g.manual_seed(1),
    "same seed after draws": lambda g: g.manual_seed(0),
    "one word": lambda g: torch.empty(1).uniform_(generator=g),
    "a normal number, of which another is kept": lambda g: torch.randn(1, generator=g),
    "the normal number that was kept": lambda g: torch.randn(1, generator=g),
    "one of double precision": lambda g: torch.randn(1, generator=g, dtype=torch.float64),
    "a block": lambda g: torch.randn(4096, generator=g),
    "exactly one block of words": lambda g: torch.empty(624).uniform_(generator=g),
    "a permutation": lambda g: torch.randperm(10, generator=g),
    "the state of another": lambda g: g.set_state(torch.Generator().get_state()),
    "a seed of the system": lambda g: g.seed(),
}


def test_the_words_of_this_torch_are_found() -> None:
    assert generator_memory.words_offset() is not None, (
        "torch lays out a CPU generator otherwise: each draw that is passed over copies its state"
    )


@pytest.mark.parametrize("is_found", [True, False])
def test_every_move_changes_the_memory(is_found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_memory.FACT, "holds", lambda: is_found)
    generator = torch.Generator().manual_seed(0)
    memory = generator_memory.state_memory(generator)
    for name, move in MOVES.items():
        before, state = memory.raw, generator.get_state()
        assert memory.raw == before
        move(generator)
        assert torch.equal(state, generator.get_state()) == (memory.raw == before) is False, name


def test_reading_moves_nothing() -> None:
    before = torch.default_generator.get_state()
    assert len(generator_memory.state_memory(torch.default_generator).raw) > 624 * 4
    assert torch.equal(torch.default_generator.get_state(), before)
