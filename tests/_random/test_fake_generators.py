"""Generators of devices that are not there: they report them, and have positions of their own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode, materialize_tensor
from torchfake._random import fake_generators
from torchfake._random.fake_generators import FakeGenerator

CUDA = torch.device("cuda", 1)


def drawn(*, seed: int | None = None, state: torch.Tensor | None = None) -> list[float]:
    """What a deferred module draws on a fake device."""
    with deferred_mode(fake_cuda=2):
        if seed is not None:
            torch.cuda.manual_seed_all(seed)
        if state is not None:
            torch.cuda.set_rng_state(state)
        made = torch.rand(3, device="cuda")
    return list(materialize_tensor(made, device="cpu").tolist())


def test_a_default_generator_has_the_seed_of_the_cpu() -> None:
    """A CPU generator with the same seed takes the place of one that does not exist."""
    torch.manual_seed(11)
    generator = fake_generators.default_generator(CUDA)
    assert generator.device == CUDA
    assert generator.initial_seed() == 11
    assert torch.equal(generator.beginning(), torch.Generator().manual_seed(11).get_state())
    assert fake_generators.default_generator(CUDA) is generator
    assert fake_generators.default_generator(torch.device("cuda", 0)) is not generator
    generator.manual_seed(3)
    assert generator.initial_seed() == 3
    torch.manual_seed(12)
    assert generator.initial_seed() == 12


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_the_same_seed_again_outside_of_a_mode_starts_again(mode: Any) -> None:
    def draws() -> list[float]:
        with mode(fake_cuda=True):
            made = torch.rand(3, device="cuda").tolist()
        return made  # type: ignore[no-any-return]

    torch.manual_seed(7)
    first, second = draws(), draws()
    assert first != second
    torch.manual_seed(7)
    assert [draws(), draws()] == [first, second]


def test_it_is_found_again_by_what_is_in_cpp() -> None:
    generator = FakeGenerator(CUDA)
    assert fake_generators.fake_generator(generator) is generator
    assert fake_generators.fake_generator(torch.Generator()) is None
    assert isinstance(generator, torch.Generator)


def test_what_is_drawn_follows_from_the_seed() -> None:
    """In the order of draws: the same seed again gives the same again, and a state read earlier
    is returned to.
    """
    assert drawn(seed=5) == drawn(seed=5) != drawn(seed=6)
    first = drawn(seed=5)
    with fake_mode(fake_cuda=2):
        state = torch.cuda.get_rng_state()
    second = drawn()
    assert drawn() != second != first
    assert drawn(state=state) == second


def test_generators_that_are_passed() -> None:
    def draws(seed: int) -> Any:
        with deferred_mode(fake_cuda=2):
            generator = torch.Generator("cuda:1").manual_seed(seed)
            tensors = [torch.randn(2, device="cuda:1", generator=generator) for _ in range(2)]
            tensors.append(torch.empty(3, device="cuda:1").uniform_(generator=generator))
        return [materialize_tensor(t, device="cpu").tolist() for t in tensors]

    one = draws(1)
    assert one == draws(1) != draws(2)
    assert one[0] != one[1]


def test_draws_do_not_move_other_generators() -> None:
    before = torch.get_rng_state()
    with fake_mode(fake_cuda=1):
        generator = torch.Generator("cuda").manual_seed(1)
        first = torch.randint(1000, (4,), device="cuda", generator=generator).tolist()
        generator.manual_seed(1)
        assert torch.randint(1000, (4,), device="cuda", generator=generator).tolist() == first
    assert torch.equal(torch.get_rng_state(), before)


def test_states() -> None:
    """16 bytes, as of CUDA: the seed, and a number for the position."""
    generator = FakeGenerator(CUDA).manual_seed(300)
    state = generator.get_state()
    assert (state.dtype, state.shape, state.device.type) == (torch.uint8, (16,), "cpu")
    assert state.tolist() == [44, 1] + 14 * [0]
    assert generator.get_offset() == 0
    assert torch.equal(generator.clone_state().get_state(), state)
    torch.rand(2, generator=generator)  # on the CPU it is one of the CPU
    moved = generator.get_state()
    assert not torch.equal(moved, state)
    assert torch.equal(generator.get_state(), moved)
    following = torch.rand(2, generator=generator).tolist()
    assert torch.rand(2, generator=generator.set_state(moved)).tolist() == following
    for copied in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        assert copied.device == CUDA
        assert torch.equal(copied.get_state(), generator.get_state())
    with pytest.raises(RuntimeError, match="wrong size"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))


def test_seeds_of_a_machine() -> None:
    with fake_mode(fake_cuda=3):
        torch.manual_seed(8)
        assert torch.cuda.initial_seed() == 8
        torch.cuda.manual_seed_all(9)
        assert [g.initial_seed() for g in torch.cuda.default_generators] == [9, 9, 9]
        assert [g.device.index for g in torch.cuda.default_generators] == [0, 1, 2]
        torch.cuda.set_device(2)
        torch.cuda.manual_seed(1)
        assert torch.cuda.random.initial_seed() == torch.cuda.initial_seed() == 1
        assert torch.cuda.default_generators[0].initial_seed() == 9
        states = torch.cuda.get_rng_state_all()
        torch.cuda.seed_all()
        torch.cuda.set_rng_state_all(states)
        assert torch.cuda.initial_seed() == 1
    assert len(torch.cuda.default_generators) == (torch.cuda.device_count() or 0)
