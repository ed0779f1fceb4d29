"""Generators at given positions, reached by drawing or by a jump."""

from __future__ import annotations

import pytest
import torch

from torchfake._random import generator_pool
from torchfake._random.draw_sizes import is_uniform_counted
from torchfake._random.generator_pool import GeneratorPool, KnownStates
from torchfake._random.recorded_draws import Draw

CPU = torch.device("cpu")


def words_at(anchor: torch.Tensor, offset_words: int, num_words: int) -> list[int]:
    """Words of the sequence, drawn one after the other from its beginning."""
    generator = torch.Generator()
    generator.set_state(anchor)
    words = torch.empty(offset_words + num_words, dtype=torch.int32).random_(generator=generator)
    return words[offset_words:].tolist()


def words_from(generator: torch.Generator, num_words: int) -> list[int]:
    return torch.empty(num_words, dtype=torch.int32).random_(generator=generator).tolist()


@pytest.mark.parametrize("max_skipped", [0, 200_000])
def test_generators_stand_where_draws_begin(
    max_skipped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forwards, backwards, and where the last draw ended; by jumps, or by drawing the words."""
    monkeypatch.setattr(generator_pool, "MAX_SKIPPED_WORDS", max_skipped)
    anchor = torch.Generator().manual_seed(3).get_state()
    pool = GeneratorPool(KnownStates())
    for offset in (0, 10, 700, 5, 30_000, 15, 29_000):
        generator = pool.at(Draw(anchor, offset, 10, CPU), skip_words=2)
        assert words_from(generator, 8) == words_at(anchor, offset + 2, 8)
        pool.advance_by(8)


def test_a_draw_continues_after_an_uncounted_one() -> None:
    anchor = torch.Generator().manual_seed(3).get_state()
    pool = GeneratorPool(KnownStates())
    generator = pool.at(Draw(anchor, 5, None, CPU))
    torch.randperm(30, generator=generator)
    end_state = generator.get_state()
    pool.advance_to(end_state)
    assert pool.at(Draw(end_state, 0, 10, CPU)) is generator
    assert words_from(pool.at(Draw(end_state, 4, 10, CPU)), 3) == words_at(end_state, 4, 3)


def test_positions_are_published_to_other_pools() -> None:
    anchor = torch.Generator().manual_seed(3).get_state()
    known = KnownStates()
    pool = GeneratorPool(known)
    words_from(pool.at(Draw(anchor, 1000, 50, CPU)), 50)
    pool.advance_by(50)
    pool.publish_position()
    assert torch.equal(known.state(anchor, 1050), pool.at(Draw(anchor, 1050, 1, CPU)).get_state())
    assert [offset for _, offset in known._states] == [1000, 1050]


def test_two_draws_are_continued_in_turn() -> None:
    """A fused group with two draws goes back and forth, without a jump or a word in between."""
    assert is_uniform_counted()
    anchor = torch.Generator().manual_seed(3).get_state()
    pool = GeneratorPool(KnownStates())
    near, far = Draw(anchor, 0, 100, CPU), Draw(anchor, 1_000_000, 100, CPU)
    generators = set()
    for start in range(0, 100, 10):
        for draw in (near, far):
            generator = pool.at(draw, start)
            generators.add(generator)
            assert words_from(generator, 10) == words_at(anchor, draw.offset_words + start, 10)
            pool.advance_by(10)
    assert len(generators) == 2


def test_known_states_are_used() -> None:
    """From the nearest one before; the oldest of too many are dropped."""
    anchor = torch.Generator().manual_seed(3).get_state()
    known = generator_pool.KnownStates()
    expected = {}
    generator = torch.Generator()
    for words in (5, 1000, 70_000, 70_001, 900):
        generator.set_state(anchor)
        torch.empty(words, dtype=torch.int32).random_(generator=generator)
        expected[words] = generator.get_state()
    for words in (70_000, 5, 1000, 70_001, 900, 70_000):
        assert torch.equal(known.state(anchor, words), expected[words])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator_pool, "MAX_KNOWN_STATES", 2)
        for words in (1, 2, 3, 4):
            known.state(anchor, words)
    assert len(known._states) <= 5
    assert torch.equal(known.state(anchor, 900), expected[900])
