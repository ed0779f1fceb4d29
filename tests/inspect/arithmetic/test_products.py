"""FLOPs of matrix products, against counts by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.inspect.arithmetic.counted import counted

N, K, M = 3, 5, 7

CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], dict[str, int]]] = {
    "mv": (torch.mv, [(N, K), (K,)], {"aten.mv": 2 * (2 * N * K)}),  # its backward has one too
    "matrix @ vector": (lambda a, b: a @ b, [(N, K), (K,)], {"aten.mv": 2 * (2 * N * K)}),
    "dot": (torch.dot, [(K,), (K,)], {"aten.dot": 2 * K}),
    "vdot": (torch.vdot, [(K,), (K,)], {"aten.vdot": 2 * K}),
    "addmv": (torch.addmv, [(N,), (N, K), (K,)], {"aten.addmv": 2 * N * K, "aten.mv": 2 * N * K}),
    "addbmm": (
        torch.addbmm,
        [(N, M), (2, N, K), (2, K, M)],
        {"aten.addbmm": 2 * 2 * N * K * M, "aten.bmm": 2 * (2 * 2 * N * K * M)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_products(name: str) -> None:
    function, shapes, expected = CASES[name]
    assert counted(function, *shapes) == expected


def test_in_place_and_out_are_counted_as_the_others_are() -> None:
    with torch.no_grad():
        in_place = counted(lambda c, a, b: c.detach().addmm_(a, b), (N, M), (N, K), (K, M))
        out = counted(lambda c, a, b: torch.mm(a, b, out=c.detach()), (N, M), (N, K), (K, M))
    assert in_place == {"aten.addmm_": 2 * N * K * M}
    assert out == {"aten.mm": 2 * N * K * M}


def test_products_of_integers() -> None:
    found = counted(torch._int_mm, (32, 64), (64, 16), dtype=torch.int8)
    assert found == {"aten._int_mm": 2 * 32 * 64 * 16}


def test_int8_weights() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        w, scales = torch.empty(16, 64, dtype=torch.int8, device="cuda"), x[0, :16].detach()
        return torch._weight_int8pack_mm(x.detach(), w, scales)

    found = counted(run, (32, 64), dtype=torch.bfloat16)
    assert found == {"aten._weight_int8pack_mm": 2 * 32 * 64 * 16}


def test_bilinear() -> None:
    """The first product and its sum over the second input; backward, one gradient each."""
    rows, wide, other, out = 4, 6, 8, 10
    forward = 2 * rows * out * wide * other + 2 * rows * out * other
    with torch.no_grad():
        found = counted(F.bilinear, (rows, wide), (rows, other), (out, wide, other))
    assert found == {"aten._trilinear": forward}
    both = counted(F.bilinear, (rows, wide), (rows, other), (out, wide, other))
    assert 3 * forward < both["aten._trilinear"] + forward < 5 * forward
    with torch.no_grad():
        assert counted(F.bilinear, (0, 6), (0, 8), (10, 6, 8)) == {"aten._trilinear": 0}


def test_the_loss_of_a_linear_layer_that_computes_its_gradients_forward() -> None:
    if not hasattr(F, "linear_cross_entropy"):
        return  # before torch 2.13
    rows, wide, classes = 64, 32, 100

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        target = torch.zeros(rows, dtype=torch.long, device="cuda")
        return F.linear_cross_entropy(x, w, target)

    found = counted(run, (rows, wide), (classes, wide))
    assert sum(found.values()) == 3 * 2 * rows * wide * classes


def test_distances_by_a_product() -> None:
    with torch.no_grad():
        found = counted(torch.ops.aten._euclidean_dist, (N, K), (M, K))
    assert sum(found.values()) == 2 * N * M * (K + 2)


def test_groups() -> None:
    rows, groups, wide, out = 64, 4, 32, 16
    with torch.no_grad():
        found = counted(
            lambda a, b: torch._grouped_mm(
                a.detach(), b.detach(), offs=torch.arange(1, 5, dtype=torch.int32, device="cuda")
            ),
            (rows, wide),
            (groups, wide, out),
            dtype=torch.bfloat16,
        )
    assert found == {"aten._grouped_mm": 2 * math.prod((rows, wide, out))}
