"""Jump ahead against drawing, bit for bit, from and to all positions in a block."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchfake._random.mt19937 import STATE_BYTES, jump_ahead


def state_after_drawing(generator: torch.Generator, num_words: int) -> torch.Tensor:
    """The state after drawing so many words: an int32 of `random_` takes one."""
    if num_words:
        torch.empty(num_words, dtype=torch.int32).random_(generator=generator)
    return generator.get_state()


@pytest.mark.parametrize("before", [0, 1, 623, 624, 625, 1000])
@pytest.mark.parametrize("num_words", [0, 1, 622, 623, 624, 625, 1247, 1248, 1249, 5000])
def test_positions_around_blocks(before: int, num_words: int) -> None:
    generator = torch.Generator().manual_seed(before)
    state = state_after_drawing(generator, before).clone()
    assert torch.equal(jump_ahead(state, num_words), state_after_drawing(generator, num_words))


@given(st.integers(0, 2**63 - 1), st.integers(0, 2_000), st.integers(0, 3_000_000))
@settings(max_examples=25)
def test_jumping_equals_drawing(seed: int, before: int, num_words: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    state = state_after_drawing(generator, before)
    assert torch.equal(jump_ahead(state, num_words), state_after_drawing(generator, num_words))


def test_a_long_jump() -> None:
    generator = torch.Generator().manual_seed(1)
    state = generator.get_state()
    assert torch.equal(jump_ahead(state, 123_456_789), state_after_drawing(generator, 123_456_789))


@given(st.integers(0, 2**70), st.integers(0, 2**70))
@settings(max_examples=10, deadline=None)
def test_two_jumps_are_one(first: int, second: int) -> None:
    state = torch.Generator().manual_seed(5).get_state()
    assert torch.equal(
        jump_ahead(jump_ahead(state, first), second), jump_ahead(state, first + second)
    )


def test_the_given_state_is_not_changed() -> None:
    state = torch.Generator().manual_seed(5).get_state()
    before = state.clone()
    jump_ahead(state, 10**9)
    assert torch.equal(state, before)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        jump_ahead(torch.zeros(3, dtype=torch.uint8), 1)
    with pytest.raises(ValueError, match="-1 words"):
        jump_ahead(torch.zeros(STATE_BYTES, dtype=torch.uint8), -1)
