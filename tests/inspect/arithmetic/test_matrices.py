"""The sizes of the products that operators compute, against what the layers say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchfake import fake_mode
from torchfake.inspect.arithmetic.call import Call
from torchfake.inspect.arithmetic.formulas import flops_of, kind_of_product, products_of
from torchfake.inspect.arithmetic.matrices import Product
from torchfake.observe import Observer, observing


class Products(Observer):
    """The products of each call of an operator with a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Product, ...]] = []
        self.flops: list[int] = []

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        flops = flops_of(func, args, kwargs, result)
        if flops is not None and kind_of_product(func) in ("convolutions", "matrix products"):
            self.flops.append(flops.total)
            self.found.append(products_of(Call(func, args, kwargs, result), flops.total))


def products(run: Callable[[], Any]) -> list[tuple[Product, ...]]:
    with fake_mode(fake_cuda="h100-80gb"), torch.device("cuda"), observing(Products()) as seen:
        run()
    for flops, found in zip(seen.flops, seen.found, strict=True):
        assert not found or sum(product.flops for product in found) == pytest.approx(flops)
    return seen.found


def half(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.float16)


def step(layer: nn.Module, *shape: int) -> Callable[[], None]:
    def run() -> None:
        x = half(*shape).requires_grad_()
        layer.half().cuda()(x).sum().backward()

    return run


def test_a_linear_layer_and_its_gradients() -> None:
    found = products(step(nn.Linear(96, 384), 512, 96))
    forward, *gradients = found
    assert forward == (Product(1, 512, 384, 96),)
    assert {each for (each,) in gradients} == {Product(1, 512, 96, 384), Product(1, 384, 96, 512)}


def test_a_convolution_and_its_gradients() -> None:
    forward, backward = products(step(nn.Conv2d(16, 64, 3, padding=1), 4, 16, 20, 10))
    assert forward == (Product(1, 4 * 20 * 10, 64, 16 * 9),)
    of_images, of_weight = backward
    assert of_images == Product(1, 4 * 20 * 10, 16, 64 * 9)
    assert of_weight == Product(1, 64, 16 * 9, 4 * 20 * 10)


def test_groups_are_products_of_their_own() -> None:
    forward, backward = products(step(nn.Conv2d(64, 128, 1, groups=4), 4, 64, 8, 8))
    assert forward == (Product(4, 256, 32, 16),)
    assert backward == (Product(4, 256, 16, 32), Product(4, 32, 16, 256))


def test_strides_and_transposed_convolutions_do_the_flops_of_the_layer() -> None:
    forward, (of_images, of_weight) = products(step(nn.Conv2d(8, 16, 3, 2, 1), 2, 8, 8, 8))
    assert forward == (Product(1, 2 * 16, 16, 72),)
    assert (of_images.rows, of_images.columns) == (2 * 64, 8)
    assert of_weight == Product(1, 16, 72, 2 * 16)
    ((transposed,), _) = products(step(nn.ConvTranspose2d(8, 16, 2, 2), 2, 8, 4, 4))
    assert (transposed.rows, transposed.columns) == (2 * 64, 16)


def test_a_convolution_without_a_batch() -> None:
    assert products(lambda: F.conv2d(half(8, 5, 5), half(16, 8, 1, 1))) == [
        (Product(1, 25, 16, 8),)
    ]


@pytest.mark.parametrize(("channels", "is_aligned"), [(64, True), (60, False)])
def test_rows_that_are_no_whole_vectors(channels: int, is_aligned: bool) -> None:
    ((found,),) = products(lambda: half(512, channels) @ half(channels, 64))
    assert found.is_aligned is is_aligned


def test_the_first_convolution_has_no_gradient_of_images() -> None:
    layer = nn.Conv2d(3, 16, 3)

    def run() -> None:
        layer.half().cuda()(half(2, 3, 10, 10)).sum().backward()

    _, backward = products(run)
    assert [(each.rows, each.columns, each.is_aligned) for each in backward] == [(16, 27, False)]


def test_a_product_with_a_vector_is_no_matrix() -> None:
    assert products(lambda: half(64, 64) @ half(64)) == [()]
