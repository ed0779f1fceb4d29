"""Operations executed on real tensors, and those that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchfake import (
    deferred_init,
    deferred_mode,
    errors,
    fake_mode,
    is_deferred,
    materialize_module,
    materialize_tensor,
)
from torchfake._operators.meta_kernels import outputs


def test_an_error_where_there_is_no_memory() -> None:
    huge = deferred_init(nn.Linear, 1 << 31, 1 << 20, bias=False)
    with pytest.raises(errors.ReplayError, match="there is no memory for 9,007,199,254,740,992"):
        materialize_module(huge)
    assert is_deferred(huge)


@pytest.mark.usefixtures("tiny")
def test_a_real_tensor_that_was_written_is_found_in_a_group() -> None:
    real = torch.tensor(2.0)
    with deferred_mode():
        filled = torch.empty(100).normal_().fill_(real)
    real.add_(1)
    with pytest.raises(errors.ReplayError, match="was written in place since"):
        materialize_tensor(filled)


def test_values_are_right_where_the_strides_of_an_output_were_predicted_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outputs, "_stride_left", lambda *args: (1, 3))

    def transformed() -> torch.Tensor:
        out = torch.empty(0, dtype=torch.complex64)
        torch.fft.fft(torch.arange(6.0).view(3, 2), out=out)
        return out.real + 1

    with deferred_mode():
        deferred = transformed()
    assert torch.equal(materialize_tensor(deferred), transformed())


@pytest.mark.usefixtures("tiny")
def test_uninitialized_memory() -> None:
    materialized = materialize_module(deferred_init(lambda: nn.ParameterList([torch.empty(100)])))
    assert not is_deferred(materialized)


def test_the_global_generator_does_not_move_during_a_replay() -> None:
    """Not even while a rejection sampler runs."""
    states = set()

    def build() -> list[torch.Tensor]:
        return [nn.init.trunc_normal_(torch.empty(40, 40)), nn.init.orthogonal_(torch.empty(9, 9))]

    made: list[Any] = deferred_init(build)
    before = torch.get_rng_state()

    def watch() -> None:
        states.add(bytes(torch.default_generator.get_state().numpy()))

    for op in [tensor._fake_storage.deferred.contents.op for tensor in made]:
        function = op.func
        op.func = lambda *a, f=function, **k: (watch(), f(*a, **k))[1]
    for tensor in made:
        materialize_tensor(tensor)
    assert states == {bytes(before.numpy())}


@torch.library.custom_op("torchfake_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    """Draws, and does not say so."""
    return x + torch.randn(x.shape)


@torch.library.custom_op(
    "torchfake_tests::declared", mutates_args=(), tags=torch.Tag.nondeterministic_seeded
)
def declared(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn(x.shape)


noisy.register_fake(torch.empty_like)
declared.register_fake(torch.empty_like)


def test_an_operator_that_draws_in_secret_is_refused() -> None:
    """The draws after it would have other values than in eager mode."""
    with deferred_mode():
        made = noisy(torch.zeros(100))
    before = torch.get_rng_state()
    with pytest.raises(errors.ReplayError, match=r"torchfake_tests.noisy.default has drawn"):
        materialize_tensor(made)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_operator_that_draws_in_secret_on_known_values() -> None:
    before = torch.get_rng_state()
    with fake_mode(), pytest.raises(errors.UnsupportedOpError, match="nondeterministic_seeded"):
        noisy(torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_operator_that_declares_its_draws() -> None:
    def draw() -> list[torch.Tensor]:
        return [declared(torch.zeros(100)), torch.randn(3), declared(torch.zeros(3)), torch.rand(2)]

    torch.manual_seed(0)
    eager = draw()
    after = torch.rand(3)
    torch.manual_seed(0)
    made = deferred_init(draw)
    assert torch.equal(torch.rand(3), after)
    for one, other in reversed(list(zip(eager, made, strict=True))):
        assert torch.equal(materialize_tensor(other), one)
