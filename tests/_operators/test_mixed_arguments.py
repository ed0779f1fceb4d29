"""Real tensors among the arguments of a fake, outside of modes and inside, wherever they stand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten

from torchfake import deferred_mode, fake_like, fake_mode, is_fake, materialize_tensor

CALLS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "bincount": (lambda w: torch.bincount(torch.tensor([1, 2, 2]), w, minlength=7), [(3,)]),
    "bincount half": (lambda w: torch.bincount(torch.tensor([1, 2, 2]), w.half()), [(3,)]),
    "meshgrid": (lambda *xs: torch.meshgrid(*xs, indexing="ij"), [(2,), (3,)]),
    "cartesian_prod": (torch.cartesian_prod, [(2,), (3,)]),
    "cosine_similarity": (F.cosine_similarity, [(4, 3), (4, 3)]),
    "attention": (F.scaled_dot_product_attention, [(1, 2, 3, 4)] * 3),
    "inner": (torch.inner, [(4, 3), (5, 3)]),
    "multi_dot": (lambda *xs: torch.linalg.multi_dot(xs), [(4, 3), (3, 5), (5, 2)]),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i.long(), 0), [(3, 2), (1, 2)]),
    "vander": (torch.vander, [(3,)]),
    "quantile": (lambda x, q: torch.quantile(x, q.clamp(0, 1)), [(30,), (2,)]),
    "lu_unpack": (lambda x, p: torch.lu_unpack(x, p.int() * 0 + 1), [(5, 3), (3,)]),
}


def _metadata(result: Any) -> list[Any]:
    tensors = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
    return [(t.shape, t.stride(), t.dtype, t.device) for t in tensors]


@pytest.mark.parametrize("mode", [contextlib.nullcontext, fake_mode])
@pytest.mark.parametrize("name", CALLS)
def test_one_fake_among_real_tensors(name: str, mode: Callable[[], Any]) -> None:
    call, sizes = CALLS[name]
    real = [torch.rand(size) for size in sizes]
    expected = _metadata(call(*real))
    for position in range(len(real)):
        given = [fake_like(x) if i == position else x for i, x in enumerate(real)]
        with mode():
            result = call(*given)
        assert _metadata(result) == expected
        assert all(map(is_fake, (t for t in tree_flatten(result)[0])))


@pytest.mark.parametrize("weights", [torch.ones(4), torch.ones(3)])
@pytest.mark.parametrize("counted", [[1, -2, 2], [[1, 2, 2]], [1, 2, 2]])
def test_refused_counts(counted: list[Any], weights: torch.Tensor) -> None:
    def outcome(given: torch.Tensor) -> Any:
        try:
            return _metadata(torch.bincount(torch.tensor(counted), given))
        except RuntimeError as error:
            return str(error)

    assert outcome(fake_like(weights)) == outcome(weights)


def test_deferred_weights_are_counted() -> None:
    def counts() -> torch.Tensor:
        return torch.bincount(torch.tensor([1, 2, 2]), torch.randn(300_000)[:3])

    torch.manual_seed(0)
    expected = counts()
    torch.manual_seed(0)
    with deferred_mode():
        deferred = counts()
    assert torch.equal(materialize_tensor(deferred), expected)
