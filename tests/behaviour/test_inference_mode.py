"""In inference mode C++ hands operators to a mode whole that it does by others: they give what the
parts give in eager, and draw what these draw.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import describe
from torchfake import deferred_mode, fake_mode

DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "dropout_": lambda x: F.dropout(x, 0.5, True, True),
    "dropout in eval": lambda x: F.dropout(x, 0.5, False),
    "dropout of channels": lambda x: F.dropout1d(x[None], 0.5, True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
    "LSTM": lambda x: nn.LSTM(4, 4, 2, dropout=0.5)(x)[0],
    "GRU": lambda x: nn.GRU(4, 4, 2, dropout=0.5)(x)[0],
    "encoder layer": lambda x: nn.TransformerEncoderLayer(4, 2, 8)(x),
}
MADE_IN_PARTS: dict[str, Callable[[Tensor], Any]] = {
    "svd": lambda x: torch.svd(x),
    "rfft2": lambda x: torch.fft.rfft2(torch.ones(5, 6, 7), dim=(2, 0)),
    "cov": lambda x: torch.cov(x),
    "combinations": lambda x: torch.combinations(x[0], 2),
    "ctc_loss": lambda x: F.ctc_loss(
        torch.ones(4, 1, 3), torch.ones(1, 2).long(), torch.tensor([4]), torch.tensor([2])
    ),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.tensor([1, 2, 1, 2]), dim=1),
}


def _run(program: Callable[[Tensor], Any], mode: Any, *, is_inside: bool) -> Any:
    """What is made in inference mode, or of a tensor that was made there, and the state after."""
    torch.manual_seed(0)
    with mode:
        with torch.inference_mode():
            made = torch.rand(3, 4)
        with torch.inference_mode(is_inside):
            outcomes = [describe(program(made.clone())) for _ in range(2)]  # the cache has it then
        return outcomes, torch.get_rng_state().tolist()


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("name", DRAWS | MADE_IN_PARTS)
def test_outcomes_and_draws_are_those_of_eager(name: str, is_inside: bool) -> None:
    program = (DRAWS | MADE_IN_PARTS)[name]
    fake = _run(program, fake_mode(), is_inside=is_inside)
    assert fake == _run(program, nullcontext(), is_inside=is_inside)


def test_what_does_nothing_returns_its_argument() -> None:
    with fake_mode(), torch.inference_mode():
        x = torch.rand(3)
        assert F.dropout(x, 0.5, False) is x


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(2, 1)),
    "meshgrid": lambda x: torch.meshgrid(x, x, indexing="ij"),
    "atleast_1d": lambda x: torch.atleast_1d(x),
    "atleast_2d": lambda x: torch.atleast_2d(x, x),
    "atleast_3d": lambda x: torch.atleast_3d(x),
    "cartesian_prod": lambda x: torch.cartesian_prod(x),
    "unflatten": lambda x: torch._utils._unflatten_dense_tensors(x, [x]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_other_tensors_are_no_inference_tensors(name: str) -> None:
    def described(mode: Any) -> Any:
        with mode:
            x = torch.ones(3, requires_grad=True)
            with torch.inference_mode():
                found = VIEWS[name](x)
            made = [found] if isinstance(found, Tensor) else found
            of_x = [not t.is_inference() and t._base is x for t in made]
            return describe(made), [t.is_inference() for t in made], of_x

    assert described(fake_mode()) == described(nullcontext())


VIEWS_OR_COPIES: dict[str, Callable[[Tensor], Any]] = {
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "ravel": lambda x: x.ravel(),
    "reshape_as": lambda x: x.reshape_as(x.t()),
    "contiguous": lambda x: x.contiguous(),
    "contiguous, channels last": lambda x: x[None, :, :, None].contiguous(
        memory_format=torch.channels_last
    ),
    "expanded": lambda x: x.expand(2, *x.shape).reshape(-1, 3),
    "resolve_conj": lambda x: x.conj().resolve_conj(),
    "resolve_neg": lambda x: x.conj().imag.resolve_neg(),
    "to": lambda x: x.to(torch.complex128),
    "chunk": lambda x: x.chunk(2),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2),
    "atleast_3d": lambda x: torch.atleast_3d(x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(1)),
    "detach": lambda x: x.detach(),
    "clone": lambda x: x.clone(),
}


@pytest.mark.parametrize("is_transposed", [True, False])
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("is_made_inside", [True, False])
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", VIEWS_OR_COPIES)
def test_views_are_of_the_kind_of_their_base_and_copies_are_not(
    name: str, mode: Any, is_made_inside: bool, is_inside: bool, is_transposed: bool
) -> None:
    """What ``reshape`` copies outside of inference mode is no inference tensor."""

    def described() -> list[Any]:
        with torch.inference_mode(is_made_inside):
            x = torch.full((4, 3), 1 + 2j)
            x = x.t() if is_transposed else x
        with torch.inference_mode(is_inside):
            made = VIEWS_OR_COPIES[name](x)
        tensors = [made] if isinstance(made, Tensor) else made
        return [(t.is_inference(), t.shape, t.stride(), t.dtype) for t in tensors]

    eager = described()
    with mode():
        assert [described() for _ in range(3)] == [eager] * 3


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda x: x.add_(1),
    "swapdims_": lambda x: x.swapdims_(0, 1),
    "fill_diagonal_": lambda x: x.fill_diagonal_(1.0),
    "dropout_": lambda x: F.dropout(x, 0.5, True, True),
    "dropout_ in eval": lambda x: F.dropout(x, 0.5, False, True),
    "foreach": lambda x: torch._foreach_add_([x], 1.0),
    "resize_as_": lambda x: x.resize_as_(torch.ones(2)),
    "batch_norm": lambda x: F.batch_norm(torch.ones(2, 4), x[0], x[1], training=True),
}


def _written(write: Callable[[Tensor], Any], mode: Any) -> Any:
    with mode:
        with torch.inference_mode():
            x = torch.ones(3, 4)
            write(x.clone())  # the cache has it then
            inside = describe(x)
        try:
            write(x)
        except RuntimeError as error:
            return inside, str(error)
        return inside, describe(x)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", WRITES)
def test_writes_outside_of_the_mode_are_refused_where_eager_refuses_them(
    name: str, mode: Any
) -> None:
    assert _written(WRITES[name], mode()) == _written(WRITES[name], nullcontext())
