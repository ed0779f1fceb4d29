"""What fake CUDA lays out as cuDNN does: by the rules of aten/src/ATen/native/ConvUtils.h."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchfake import fake_mode

LAST, LAST_3D = torch.channels_last, torch.channels_last_3d


def gradients(
    layer: Any, shape: tuple[int, ...], of_input: Any = None, of_weight: Any = None, **options: Any
) -> list[torch.Tensor]:
    """The result of a layer and its gradients, of the input before autograd accumulates it."""
    x = torch.randn(shape, device="cuda", **options)
    layer = layer.to(device="cuda", **options)
    if of_weight is not None:
        layer = layer.to(memory_format=of_weight)
    if of_input is not None:
        x = x.to(memory_format=of_input)
    y = layer(x.requires_grad_())
    found = torch.autograd.grad(y.sum(), [x, layer.weight, layer.bias])
    return [y, *found]


@pytest.mark.parametrize("formats", [(LAST, None), (None, LAST), (LAST, LAST), (None, None)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("build", [nn.Conv2d, nn.ConvTranspose2d])
def test_either_format_of_a_convolution_decides(formats: Any, dtype: Any, build: Any) -> None:
    of_input, of_weight = formats
    with fake_mode(fake_cuda=True):
        layer = build(8, 8, 3, groups=4)
        found = gradients(layer, (2, 8, 9, 9), of_input, of_weight, dtype=dtype)
    is_last = formats != (None, None) and dtype != torch.float64
    for tensor in found[:3]:
        assert tensor.is_contiguous(memory_format=LAST if is_last else torch.contiguous_format)
    assert [tuple(t.shape) for t in found[1:]] == [(2, 8, 9, 9), tuple(layer.weight.shape), (8,)]


def test_convolutions_of_one_and_three_dims() -> None:
    with fake_mode(fake_cuda=True):
        rows = gradients(nn.Conv1d(3, 4, 3), (2, 3, 9))
        volumes = gradients(nn.Conv3d(3, 4, 3), (2, 3, 9, 9, 9), of_weight=LAST_3D)
        empty = gradients(nn.Conv2d(3, 4, 3), (0, 3, 9, 9), of_weight=LAST)
    assert all(t.is_contiguous() for t in rows)
    assert all(t.is_contiguous(memory_format=LAST_3D) for t in volumes[:3])
    assert empty[0].stride() == (196, 49, 7, 1)


def test_batch_norm_of_known_values_in_eval() -> None:
    """The CPU, which computes known values, saves no statistics there, and CUDA does."""
    with fake_mode(fake_cuda=True), torch.device("cuda"):
        layer = nn.BatchNorm1d(3).eval()
        result = layer(torch.tensor([[1.0, 2.0, 3.0]]))
        assert result.device == torch.device("cuda:0")
        result.sum().backward()
        assert layer.weight.grad.shape == (3,)
