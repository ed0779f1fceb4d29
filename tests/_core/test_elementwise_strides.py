"""The strides of elementwise results equal those of CPU kernels, in dims of length one too."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from torchfake import fake_like, fake_mode
from torchfake._core.metadata import Operand, strides_of_result, strides_preserved

LAYOUTS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 8, 1, 1), (8, 1, 8, 8)),
    ((1, 8, 4, 4), (8, 1, 32, 8)),
    ((1, 1, 4, 4), (16, 1, 4, 1)),
    ((2, 3, 4, 5), (60, 20, 5, 1)),
    ((2, 3, 4, 5), (60, 1, 15, 3)),
    ((2, 3, 4, 5), (60, 20, 1, 4)),
    ((3, 1, 4), (4, 1, 1)),
    ((3, 4), (1, 3)),
    ((3, 1), (1, 7)),
    ((2, 3), (9, 2)),
    ((0, 3), (3, 1)),
    ((1, 0, 3), (24, 3, 1)),
    ((), ()),
    ((4, 1, 5), (1, 20, 4)),
]
UNARY: list[Callable[[Tensor], Tensor]] = [torch.neg, torch.relu, F.gelu, torch.isnan]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.mul, torch.floor_divide, torch.logaddexp, torch.heaviside, torch.gt, torch.xlogy
]  # fmt: skip


def tensor(size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(size, stride).fill_(1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_of_one_tensor(layout: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, operand = tensor(*layout), Operand(*layout)
    assert {f(x).stride() for f in UNARY} == {strides_of_result(layout[0], [operand])}
    assert (x + 1).stride() == strides_of_result(layout[0], [operand, Operand((), ())])
    assert torch.empty_like(x).stride() == strides_preserved(operand)


def test_of_two_tensors() -> None:
    num_compared = 0
    for first, second in itertools.product(LAYOUTS, LAYOUTS):
        try:
            size = torch.broadcast_shapes(first[0], second[0])
        except RuntimeError:
            continue
        expected = strides_of_result(tuple(size), [Operand(*first), Operand(*second)])
        results = {f.__name__: f(tensor(*first), tensor(*second)).stride() for f in BINARY}
        assert results == dict.fromkeys(results, expected), (first, second)
        num_compared += 1
    assert num_compared > 70


SIZES = [(1, 8, 4, 4), (2, 8, 1, 1), (1, 8, 1, 4), (1, 1, 4, 4), (2, 1, 1, 4), (1, 8, 4, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("is_flat", [False, True])
def test_around_a_layer_norm(size: tuple[int, ...], is_flat: bool) -> None:
    """Operators after a layer norm of images, which depend on strides of dims of length one."""

    def program(x: Tensor) -> list[tuple[int, ...]]:
        channels = x.shape[1]
        view = x.flatten(2).transpose(1, 2) if is_flat else x.permute(0, 2, 3, 1)
        weight = torch.ones(channels)
        normed = F.layer_norm(view, (channels,), weight, weight)
        back = normed.transpose(1, 2).reshape(x.shape) if is_flat else normed.permute(0, 3, 1, 2)
        results = [normed, back, F.conv2d(back, torch.ones(2, channels, 1, 1)), back + 1]
        results += [F.gelu(back), torch.where(back > 0, back, back * 2), F.group_norm(back, 1)]
        results += [torch.cat([back, back], 1), back * back.mean((2, 3), keepdim=True)]
        return [t.stride() for t in results]

    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(size).to(memory_format=memory_format)
        with fake_mode():
            found = program(fake_like(x))
        assert found == program(x)
