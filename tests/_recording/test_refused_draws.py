"""A draw that eager refuses is refused at once, and neither recorded nor counted."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests._recording.draw_oracle import difference
from tests._recording.draws import Case, cases
from tests.oracle import assert_equals_eager
from torchfake import deferred_mode

NUM_SAMPLED = 900
"""Of some 65,000: ``nox -s draws`` runs all of them."""

SAMPLED = random.Random(0).sample(cases(), NUM_SAMPLED)


@pytest.mark.parametrize("part", range(3))
def test_draws_in_a_try_statement_equal_eager(part: int) -> None:
    differing = {case: difference(case) for case in SAMPLED[part::3]}
    assert not {case: found for case, found in differing.items() if found is not None}


REFUSED: dict[str, Case] = {
    "a range that the dtype has not": Case("random_(1, 1000)", torch.uint8, (3,), False),
    "rates of integers": Case("poisson", torch.int64, (3,), True),
    "a negative rate": Case("poisson of -1", torch.float32, (40,), False),
    "weights of integers": Case("multinomial 2", torch.int32, (4, 6), False),
    "more samples than categories": Case("multinomial 99", torch.float32, (5,), True),
    "weights of sum 0": Case("multinomial of 0", torch.float64, (5,), False),
    "a QR decomposition after the draw": Case("init.orthogonal_", torch.bfloat16, (4, 6), False),
    "a comparison after the draw": Case("init.trunc_normal_", torch.complex64, (4, 6), True),
    "probabilities over 1": Case("bernoulli_ of 2", torch.float32, (2, 3, 5), True),
    "a product after the draw": Case("native_dropout", torch.int64, (4, 6), False),
    "a deviation in a tensor": Case("normal of std -1", torch.float32, (40,), False),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_draws_equal_eager(name: str) -> None:
    assert difference(REFUSED[name]) is None


def test_a_parameter_is_partly_written_as_in_eager() -> None:
    """The kernel looks at each probability just before it draws with it."""

    def build() -> torch.Tensor:
        target, chances = torch.zeros(40), torch.linspace(0, 1.5, 40)
        with pytest.raises(RuntimeError):
            target.bernoulli_(chances)
        return torch.cat([target, torch.rand(4)])

    def module() -> nn.Module:
        found = nn.Module()
        found.register_buffer("drawn", build())
        return found

    assert_equals_eager(module)


FALLBACKS: dict[str, Callable[[torch.Tensor], object]] = {
    "orthogonal_": nn.init.orthogonal_,
    "cholesky": torch.linalg.cholesky,
    "inverse": torch.linalg.inv,
    "svdvals": torch.linalg.svdvals,
    "complex floor": lambda t: t.to(torch.complex64).floor(),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FALLBACKS)
def test_a_module_that_falls_back(name: str, dtype: torch.dtype) -> None:
    """What eager's kernels refuse by dtype takes the path of eager."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(6, 6, dtype=dtype).normal_())
            try:
                FALLBACKS[name](self.weight.data)
                self.scale = nn.Parameter(torch.ones(3))
            except (RuntimeError, NotImplementedError):
                self.scale = nn.Parameter(torch.rand(3))

    assert_equals_eager(Layer)


def test_the_default_generator_does_not_move_for_a_trial() -> None:
    """Draws of operators that take no generator."""
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    with deferred_mode():
        x = torch.ones(3, dtype=torch.int64)
        with pytest.raises(RuntimeError):
            torch.native_dropout(x, -1.0, True)
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.parametrize("name", ["uniform_", "normal_", "random_", "exponential_"])
def test_a_draw_into_repeated_memory_is_refused_at_once(name: str) -> None:
    with deferred_mode():
        state = torch.get_rng_state()
        with pytest.raises(RuntimeError, match="single memory location"):
            getattr(torch.empty(1, 4).expand(4, 4), name)()
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["trunc_normal_", "kaiming_normal_", "xavier_uniform_"])
def test_an_initializer_of_repeated_memory_falls_back(name: str) -> None:
    def build() -> nn.Parameter:
        try:
            getattr(nn.init, name)(torch.empty(1, 4).expand(4, 4))
        except RuntimeError:
            return nn.Parameter(torch.rand(5))
        return nn.Parameter(torch.ones(5))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = build()

    assert_equals_eager(Layer)
