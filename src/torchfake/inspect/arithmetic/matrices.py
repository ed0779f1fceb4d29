"""The matrix products that one call computes, by their sizes.

Input: a call of an operator with a formula, its FLOPs. Output: a :class:`Product` for each product,
or for each batch of equal ones. Invariant: the FLOPs of the products are those of the call.

A convolution is a product too (an implicit one): the rows of its result are positions of images,
its columns are channels, and each element sums over the channels and positions of a filter. Its
backward pass is one product for the gradient of the images and one for that of the weights, which
sums over all positions of all images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from torchfake.inspect.arithmetic import layers
from torchfake.inspect.arithmetic.call import Call, Shape


class Product(NamedTuple):
    """A batch of matrix products of equal sizes."""

    number: int
    rows: int  # of each result
    columns: int  # of each result
    depth: float  # multiply-adds for each element of a result
    is_aligned: bool = True  # whether rows of the factors are whole numbers of 16 bytes
    is_divisible: bool = True  # whether parts of the sums may be computed at the same time

    @property
    def flops(self) -> float:
        """A multiply-add is two FLOPs."""
        return 2 * self.number * self.rows * self.columns * self.depth


_ALIGNED_BYTES = 16

_OF_LAYERS: dict[str, Callable[[Call], tuple[int, int, int]]] = {
    **dict.fromkeys(layers.RECURRENT, layers.recurrent_product),
    "aten::_native_multi_head_attention": layers.layer_product,
    "aten::_transformer_encoder_layer_fwd": layers.layer_product,
}
"""Number, rows and columns of the first product of operators that are whole layers."""


def products_of(name: str, call: Call, flops: int) -> tuple[Product, ...]:
    """The products of a call of an operator; none if the result is no matrix.

    Args:
        name: of the operator, without the underscore of one that works in place.
        call: the call.
        flops: its FLOPs.
    """
    if not flops:
        return ()
    of_layer = _OF_LAYERS.get(name)
    if of_layer is not None:
        steps_follow_each_other = name in layers.RECURRENT
        product = _product(*of_layer(call), flops)
        return (product._replace(is_divisible=not steps_follow_each_other),)
    shape = call.output.shape
    if len(shape) < 2:
        return ()
    product = _product(math.prod(shape[:-2]), shape[-2], shape[-1], flops)
    is_aligned = _is_aligned(call.output.dtype, product.columns, product.depth)
    return (product._replace(is_aligned=is_aligned),)


def convolution_products(call: Call, flops: int) -> tuple[Product, ...]:
    """The products of a convolution, or of its backward pass: of each group of channels one."""
    if not flops:
        return ()
    weight = call.shape("weight")
    groups = layers.groups_of(call)
    is_aligned = _is_aligned(call["weight"].dtype, weight[0] // groups, weight[1])
    if not call.has("output_mask"):
        output = call.output.shape
        rows, channels = _positions(output, weight), output[-len(weight[1:])]
        return (_product(groups, rows, channels // groups, flops, is_aligned),)
    gradients = [*_gradients(call, weight, groups)]
    return tuple(_product(*each, flops // len(gradients), is_aligned) for each in gradients)


def _gradients(call: Call, weight: Shape, groups: int) -> Iterator[tuple[int, int, int]]:
    """Number, rows and columns of the gradients of a convolution that are asked for."""
    mask, given = call["output_mask"], call.shape("input", "self")
    if mask[0]:
        yield groups, _positions(given, weight), given[-len(weight[1:])] // groups
    if mask[1]:
        yield groups, weight[0] // groups, math.prod(weight[1:])


def _positions(images: Shape, weight: Shape) -> int:
    """The number of positions of all images; the weight has as many dims for positions."""
    batch = images[0] if len(images) == len(weight) else 1
    return batch * math.prod(images[-len(weight[2:]) :])


def _product(number: int, rows: int, columns: int, flops: int, is_aligned: bool = True) -> Product:
    depth = flops / (2 * max(number * rows * columns, 1))
    return Product(number, rows, columns, depth, is_aligned)


def _is_aligned(dtype: torch.dtype, *lengths: float) -> bool:
    """Whether tensor cores can load rows of these lengths without padding."""
    return all(length * dtype.itemsize % _ALIGNED_BYTES == 0 for length in lengths)
