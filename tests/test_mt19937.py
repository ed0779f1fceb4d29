"""Moved states against drawn ones, bit for bit, over every alignment of block and word."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchfake._mt19937 import STATE_BYTES, advanced


def drawn(generator: torch.Generator, num_words: int) -> torch.Tensor:
    """The state after drawing words: an int32 of `random_` takes one each."""
    if num_words:
        torch.empty(num_words, dtype=torch.int32).random_(generator=generator)
    return generator.get_state()


@pytest.mark.parametrize("before", [0, 1, 623, 624, 625, 1000])
@pytest.mark.parametrize("num_words", [0, 1, 622, 623, 624, 625, 1247, 1248, 1249, 5000])
def test_around_blocks(before: int, num_words: int) -> None:
    generator = torch.Generator().manual_seed(before)
    state = drawn(generator, before).clone()
    assert torch.equal(advanced(state, num_words), drawn(generator, num_words))


@given(st.integers(0, 2**63 - 1), st.integers(0, 2_000), st.integers(0, 3_000_000))
@settings(max_examples=25)
def test_equals_drawing(seed: int, before: int, num_words: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    state = drawn(generator, before)
    assert torch.equal(advanced(state, num_words), drawn(generator, num_words))


def test_far() -> None:
    generator = torch.Generator().manual_seed(1)
    state = generator.get_state()
    assert torch.equal(advanced(state, 123_456_789), drawn(generator, 123_456_789))


@given(st.integers(0, 2**70), st.integers(0, 2**70))
@settings(max_examples=10, deadline=None)
def test_two_jumps_are_one(first: int, second: int) -> None:
    state = torch.Generator().manual_seed(5).get_state()
    assert torch.equal(advanced(advanced(state, first), second), advanced(state, first + second))


def test_the_state_given_is_left_alone() -> None:
    state = torch.Generator().manual_seed(5).get_state()
    before = state.clone()
    advanced(state, 10**9)
    assert torch.equal(state, before)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        advanced(torch.zeros(3, dtype=torch.uint8), 1)
    with pytest.raises(ValueError, match="-1 words"):
        advanced(torch.zeros(STATE_BYTES, dtype=torch.uint8), -1)
