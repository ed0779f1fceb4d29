"""Norms of half precision whose parameters or statistics are float32: dtypes as in eager."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchfake import deferred_mode, fake_mode, materialize_tensor

aten = torch.ops.aten
KINDS = (None, torch.bfloat16, torch.float32)


def ones(dtype: torch.dtype | None) -> Tensor | None:
    return None if dtype is None else torch.ones(4, dtype=dtype)


def batch_norm(x: Tensor, weight: Any, bias: Any, statistics: Any, training: bool) -> Any:
    mean, var = ones(statistics), ones(statistics)
    forward, backward = aten.native_batch_norm, aten.native_batch_norm_backward
    y, *saved = forward(x, weight, bias, mean, var, training, 0.1, 1e-5)
    wanted = [True, weight is not None, bias is not None]
    return y, *saved, *backward(y, x, weight, mean, var, *saved, training, 1e-5, wanted)


def layer_norm(x: Tensor, weight: Any, bias: Any, *_: Any) -> Any:
    y, *saved = aten.native_layer_norm(x, [4], weight, bias, 1e-5)
    wanted = [True, weight is not None, bias is not None]
    return y, *saved, *aten.native_layer_norm_backward(y, x, [4], *saved, weight, bias, wanted)


def outcomes(norm: Any) -> list[Any]:
    """The dtypes of results and gradients, or the error, of every mixture."""
    every = []
    for weight, bias, statistics, training in product(KINDS, KINDS, KINDS[1:], (True, False)):
        x = torch.ones(3, 4, dtype=torch.bfloat16)
        try:
            results = norm(x, ones(weight), ones(bias), statistics, training)
            every.append([None if t is None else (t.dtype, t.shape) for t in results])
        except RuntimeError as error:
            every.append(str(error).split("\n")[0])
    return every


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("norm", [batch_norm, layer_norm])
def test_statistics_and_gradients_have_the_dtypes_of_eager(norm: Any, mode: Any) -> None:
    expected = outcomes(norm)
    with mode():
        assert outcomes(norm) == expected


def gradient_under_autocast() -> Tensor:
    torch.manual_seed(0)
    linear, norm = nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(linear(torch.randn(5, 3)))
    (y.float() ** 3).sum().backward()
    assert linear.weight.grad is not None
    return linear.weight.grad


def gradient_in_evaluation() -> Tensor:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16, requires_grad=True)
    F.batch_norm(x, torch.zeros(2), torch.full((2,), 3.0)).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("gradient", [gradient_under_autocast, gradient_in_evaluation])
def test_deferred_gradients_of_a_batch_norm_without_parameters_are_those_of_eager(
    gradient: Any,
) -> None:
    with deferred_mode():
        recorded = gradient()
    assert torch.equal(materialize_tensor(recorded), gradient())


def test_a_product_in_another_dtype_than_its_factors() -> None:
    """``out_dtype=`` is CUDA's: its result, and what the product is added to, have that dtype."""
    with fake_mode(fake_cuda=True):
        a, b = (torch.ones(s, device="cuda", dtype=torch.bfloat16) for s in ((4, 8), (8, 5)))
        added = torch.ones(4, 5, device="cuda")
        into = torch.empty(4, 5, device="cuda")
        wide = torch.float32
        assert torch.mm(a, b, out_dtype=wide).dtype == wide
        assert torch.mm(a, b, out_dtype=wide, out=into) is into
        assert torch.addmm(added, a, b, out_dtype=wide).dtype == wide
        with pytest.raises(RuntimeError, match="must have the same dtype"):
            torch.mm(a, b.float(), out_dtype=wide)
