"""Draws have the numbers of eager mode, and generators end where eager mode leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle import assert_same
from torchfake import (
    deferred_init,
    errors,
    materialize_module,
    materialize_tensor,
)
from torchfake._graph.operations import Op
from torchfake._replay import replay


def test_generators_that_are_passed() -> None:
    """They move as in eager mode."""

    def build(generator: torch.Generator) -> torch.Tensor:
        tensor = torch.empty(30, 30)
        nn.init.normal_(tensor, generator=generator)
        tensor[:5].uniform_(generator=generator)
        nn.init.trunc_normal_(tensor[5:], generator=generator)
        return tensor

    one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    eager, made = build(one), deferred_init(build, other)
    assert torch.equal(one.get_state(), other.get_state())
    assert torch.equal(materialize_tensor(made), eager)


def test_the_default_generator_passed_by_name() -> None:
    def build() -> list[torch.Tensor]:
        layer = nn.Linear(3, 4)
        nn.init.xavier_uniform_(layer.weight, generator=torch.default_generator)
        return [layer.weight.detach(), torch.rand(3, generator=torch.default_generator)]

    torch.manual_seed(0)
    eager, drawn = build(), torch.rand(2)
    torch.manual_seed(0)
    made = deferred_init(build)
    assert torch.equal(torch.rand(2), drawn)
    for one, other in zip(eager, made, strict=True):
        assert torch.equal(materialize_tensor(other), one)


def test_seeds_and_states_set_in_the_constructor() -> None:
    """Reseeding, forking, saving and restoring the state."""

    def build() -> list[torch.Tensor]:
        made = [torch.rand(20)]
        state = torch.get_rng_state()
        made.append(torch.rand(20))
        torch.set_rng_state(state)
        made.append(torch.rand(20))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            made.append(torch.randn(7))
        made.append(torch.randperm(9))
        torch.default_generator.manual_seed(8)
        made.append(torch.rand(3))
        return made

    torch.manual_seed(0)
    eager, drawn = build(), torch.rand(2)
    torch.manual_seed(0)
    made = deferred_init(build)
    assert torch.equal(torch.rand(2), drawn)
    for one, other in reversed(list(zip(eager, made, strict=True))):
        assert torch.equal(materialize_tensor(other), one)


_LARGE = 1_200_000
"""So many elements that a replay which is done for the generator alone takes noticeable time."""

_UNCOUNTED: dict[str, Callable[[int], torch.Tensor]] = {
    "trunc_normal_": lambda n: nn.init.trunc_normal_(torch.empty(n)),
    "poisson": lambda n: torch.poisson(torch.full((n,), 3.0)),
    "gamma": lambda n: torch._standard_gamma(torch.full((n,), 3.0)),
    "in parts": lambda n: [nn.init.trunc_normal_(torch.empty(n // 4)) for _ in range(4)][-1],
}


def _read(draw: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    return [draw(_LARGE), torch.get_rng_state(), torch.randn(20)]


def _forked(draw: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    made = [draw(_LARGE)]
    with torch.random.fork_rng():
        made.append(torch.rand(3))
    return [*made, torch.randn(20)]


def _restored(draw: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    made = [draw(_LARGE)]
    state = torch.get_rng_state()
    made.append(torch.rand(3))
    torch.set_rng_state(state)
    return [*made, torch.randn(20)]


def _copied(draw: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
    made = [draw(_LARGE)]
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return [*made, torch.randn(20, generator=generator), torch.randn(20)]


@pytest.mark.parametrize("program", [_read, _forked, _restored, _copied])
@pytest.mark.parametrize("name", list(_UNCOUNTED))
def test_states_after_draws_that_cannot_be_counted(
    name: str, program: Callable[[Any], list[torch.Tensor]]
) -> None:
    """Inside the mode and after it, the generator is where eager mode would have left it."""
    torch.manual_seed(7)
    eager, after = program(_UNCOUNTED[name]), torch.rand(3)
    torch.manual_seed(7)
    made = deferred_init(program, _UNCOUNTED[name])
    assert torch.equal(torch.rand(3), after)
    for one, other in reversed(list(zip(eager, made, strict=True))):
        assert torch.equal(materialize_tensor(other), one)


def test_models_after_draws_that_cannot_be_counted() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(1500, 1500)
        nn.init.trunc_normal_(layer.weight)
        return layer

    torch.manual_seed(0)
    eager = [build(), nn.Linear(3, 3)]
    torch.manual_seed(0)
    made = [deferred_init(build), deferred_init(nn.Linear, 3, 3)]
    for one, other in reversed(list(zip(eager, made, strict=True))):
        assert_same(one, materialize_module(other))
    torch.manual_seed(0)
    assert_same(eager[0], materialize_module(deferred_init(build)))


def test_draws_of_a_passed_generator_after_one_that_cannot_be_counted() -> None:
    def build(generator: torch.Generator) -> list[torch.Tensor]:
        uncounted = torch.poisson(torch.full((100,), 30.0), generator=generator)
        return [uncounted, *(torch.rand(3, generator=generator) for _ in range(2))]

    for seed in (1, 1, 2):
        eager = build(torch.Generator().manual_seed(seed))
        made = deferred_init(build, torch.Generator().manual_seed(seed))
        for one, other in reversed(list(zip(eager, made, strict=True))):
            assert torch.equal(materialize_tensor(other), one)


def test_a_draw_that_cannot_be_replayed_changes_no_other() -> None:
    """The sequence starts again from the generator's own state: a model after a seed is that of
    eager mode.
    """
    chances = torch.full((10,), 0.5)

    def build() -> torch.Tensor:
        drawn = torch.bernoulli(chances)
        chances.fill_(0.1)
        return drawn

    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="not in the state that eager would have left"):
        deferred = deferred_init(build)
    with pytest.raises(errors.ReplayError, match="written in place"):
        materialize_tensor(deferred)
    torch.manual_seed(0)
    eager = nn.Linear(3, 4)
    torch.manual_seed(0)
    assert_same(eager, materialize_module(deferred_init(nn.Linear, 3, 4)))


def test_an_interrupt_while_a_generator_is_synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_op: Op) -> None:
        raise KeyboardInterrupt

    torch.manual_seed(0)
    eager = nn.Linear(3, 4)
    torch.manual_seed(0)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "run_draws", interrupted)
        with pytest.raises(KeyboardInterrupt):
            deferred_init(lambda: nn.init.trunc_normal_(torch.empty(50, 50)))
    torch.manual_seed(0)
    assert_same(eager, materialize_module(deferred_init(nn.Linear, 3, 4)))
