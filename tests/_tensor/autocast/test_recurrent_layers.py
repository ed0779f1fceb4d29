"""Recurrent layers under autocast: oneDNN's on the CPU, cuDNN's on fake CUDA."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils import _pytree as pytree

from tests._tensor.conftest import BF16, F16, F32, HALVES
from torchfake import fake_like, fake_mode

LAYERS = [
    (nn.RNN, {}),
    (nn.LSTM, {"num_layers": 2, "dropout": 0.3}),
    (nn.LSTM, {"bidirectional": True, "bias": False, "batch_first": True}),
    (nn.LSTM, {"proj_size": 3}),
    (nn.GRU, {"bidirectional": True}),
]


def train(layer: nn.Module, x: torch.Tensor, half: torch.dtype, *, packed: bool = False) -> Any:
    """The dtypes and strides of outputs and states, and the dtypes of gradients."""
    with torch.autocast(x.device.type, dtype=half):
        lengths = torch.tensor([3, 2])
        outputs = layer(pack_padded_sequence(x, lengths) if packed else x)
    tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]
    found = [t for t in tensors if t.is_floating_point()]
    sum(t.float().sum() for t in found).backward()
    grads = [p.grad.dtype for p in layer.parameters() if p.grad is not None]
    return [(t.dtype, t.shape, t.stride()) for t in found], grads


@HALVES
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("cls", "options"), LAYERS)
def test_on_the_cpu(cls: type, options: Any, packed: bool, half: torch.dtype) -> None:
    if packed and options.get("batch_first"):
        return
    layer, x = cls(4, 5, **options), torch.randn(3, 2, 4)
    fake = train(fake_like(layer), fake_like(x), half, packed=packed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # oneDNN has no projections
        try:
            expected = train(layer, x, half, packed=packed)
        except RuntimeError as error:  # oneDNN trains in the dtypes of the CPU
            expected = None if "primitive" in str(error) or "mkldnn" in str(error) else error
    assert expected in (fake, None)


@HALVES
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("cls", "options"), LAYERS)
def test_cudnn_computes_in_float16(
    cls: type, options: Any, packed: bool, half: torch.dtype
) -> None:
    """aten/src/ATen/cudnn/AutocastRNN.cpp: whatever the dtype of autocast."""
    if packed and options.get("batch_first"):
        return
    with fake_mode(fake_cuda=True):
        layer, x = cls(4, 5, **options, device="cuda"), torch.randn(3, 2, 4, device="cuda")
        outputs, grads = train(layer, x, half, packed=packed)
    assert {dtype for dtype, *_ in outputs} == {F16}
    assert set(grads) == {F32}


def test_without_cudnn_layers_are_cast_step_by_step() -> None:
    with fake_mode(fake_cuda=True), torch.autocast("cuda", dtype=BF16):
        x = torch.randn(3, 2, 4, device="cuda")
        with torch.backends.cudnn.flags(enabled=False):
            assert nn.GRU(4, 5, device="cuda")(x)[0].dtype == BF16


def test_a_loss_that_only_the_cpu_casts_is_cudnns_under_autocast() -> None:
    with fake_mode(fake_cuda=True), torch.autocast("cuda"):
        log_probs = torch.randn(9, 2, 7, device="cuda", requires_grad=True).log_softmax(2)
        targets = torch.ones(8, dtype=torch.int32)
        lengths = [torch.full((2,), n, dtype=torch.int32) for n in (9, 4)]
        loss = F.ctc_loss(log_probs, targets, *lengths, reduction="none")
    assert "Cudnn" in type(loss.grad_fn).__name__
