"""The sizes and layouts that arguments are brought into.

Input: a tensor. Output: a tensor of other sizes, or one that lies otherwise in memory. Invariant:
an arrangement says nothing of values; strides of dims of length one and of empty tensors are part
of it, since they decide which memory format a following operator takes a tensor to have.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Arrange = Callable[[Tensor], Tensor]


def with_order(tensor: Tensor, order: list[int]) -> Tensor:
    """A copy whose dims lie in memory in this order, the slowest first."""
    inverse = [order.index(dim) for dim in range(tensor.dim())]
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


def contiguous(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def channels_last(tensor: Tensor) -> Tensor:
    """Dim 1 is the fastest: ``torch.channels_last`` and its siblings for any number of dims."""
    if tensor.dim() < 3:
        return tensor
    return with_order(tensor, [0, *range(2, tensor.dim()), 1])


def reversed_dims(tensor: Tensor) -> Tensor:
    """Column-major: all dims in reverse."""
    return with_order(tensor, list(reversed(range(tensor.dim()))))


def rotated(tensor: Tensor) -> Tensor:
    """The first dim is the fastest, as after ``permute`` of a sequence of batches."""
    return with_order(tensor, [*range(1, tensor.dim()), 0]) if tensor.dim() > 1 else tensor


def transposed(tensor: Tensor) -> Tensor:
    """As after ``mT``."""
    dims = list(range(tensor.dim()))
    return with_order(tensor, [*dims[:-2], dims[-1], dims[-2]]) if len(dims) > 1 else tensor


def gapped(tensor: Tensor) -> Tensor:
    """Every other element of a larger tensor: not dense."""
    return torch.stack([tensor, tensor], -1)[..., 0] if tensor.dim() else tensor


def stepped(tensor: Tensor) -> Tensor:
    """Every other channel, or row: ``x[:, ::2]`` of channels last."""
    if tensor.dim() < 2:
        return gapped(tensor)
    return channels_last(torch.cat([tensor, tensor], 1))[:, : 2 * tensor.shape[1] : 2]


def expanded(tensor: Tensor) -> Tensor:
    """One row of the first dim, as often as there are rows."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() and tensor.shape[0] else tensor


def expanded_last(tensor: Tensor) -> Tensor:
    """The same of the last dim."""
    if not tensor.dim() or not tensor.shape[-1]:
        return tensor
    return tensor[..., :1].expand(tensor.shape)


def odd_ones(tensor: Tensor) -> Tensor:
    """Dims of length one have strides that no kernel needs."""
    strides = [1 if n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, strides)


LAYOUTS: dict[str, Arrange] = {
    f.__name__: f
    for f in (contiguous, channels_last, reversed_dims, rotated, transposed, gapped, stepped,
              expanded, expanded_last, odd_ones)
}  # fmt: skip


def _cut(dims: slice, length: int) -> Arrange:
    def cut(tensor: Tensor) -> Tensor:
        for dim in range(tensor.dim())[dims]:
            tensor = tensor.narrow(dim, 0, min(length, tensor.shape[dim]))
        return tensor

    return cut


def _batched(num_dims: int) -> Arrange:
    """More dims, two of each, for samples too small to have channels that lie last."""

    def batch(tensor: Tensor) -> Tensor:
        missing = num_dims - tensor.dim()
        return (
            tensor.expand(*[2] * missing, *tensor.shape) if 1 < tensor.dim() < num_dims else tensor
        )

    return batch


SIZES: dict[str, Arrange] = {
    "all": lambda tensor: tensor,
    "four dims": _batched(4),
    "five dims": _batched(5),
    "one map": _cut(slice(2, None), 1),
    "one channel": _cut(slice(1, 2), 1),
    "one row": _cut(slice(0, 1), 1),
    "last one": _cut(slice(-1, None), 1),
    "all ones": _cut(slice(None), 1),
    "no row": _cut(slice(0, 1), 0),
    "no channel": _cut(slice(1, 2), 0),
    "last none": _cut(slice(-1, None), 0),
}
"""Cuts of all tensors of a call at once: eager accepts many of them, and refuses the others."""
