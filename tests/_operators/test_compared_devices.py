"""Operators that C++ composes and that compare devices: fakes with real tensors, in and outside of
modes, against eager: metadata with strides, gradients, and values of deferred tensors.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchfake import deferred_mode, fake_like, fake_mode, is_fake, materialize_tensor

pytestmark = pytest.mark.filterwarnings("ignore:A window was not provided")

WINDOW = torch.hann_window(16)
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "stft": lambda x: torch.stft(x, 16, window=WINDOW, return_complex=True),
    "stft, no window": lambda x: torch.stft(x, 16, window=None, return_complex=True),
    "stft, not centered": lambda x: torch.stft(
        x, 16, 4, window=WINDOW, center=False, return_complex=True
    ),
    "istft": lambda x: torch.istft(
        torch.stft(x, 16, window=WINDOW, return_complex=True), 16, window=WINDOW
    ),
    "istft, no window": lambda x: torch.istft(torch.stft(x, 16, return_complex=True), 16),
    "stft of a real tensor": lambda x: torch.stft(
        torch.ones(2, 64), 16, window=x[0, :16], return_complex=True
    ),
    "quantile": lambda x: torch.quantile(x, torch.tensor([0.5, 0.1]), dim=1),
    "quantile of a number": lambda x: torch.quantile(x, 0.5, dim=0, keepdim=True),
    "quantile of a real tensor": lambda x: torch.quantile(torch.arange(4.0), x[0, :2].sigmoid()),
    "nanquantile": lambda x: torch.nanquantile(x, torch.tensor([0.5])),
    "corrcoef": torch.corrcoef,
    "cov": lambda x: torch.cov(x, aweights=torch.arange(1.0, 65)),
    "gradient": lambda x: torch.gradient(x, spacing=(torch.arange(2.0), torch.arange(64.0)))[1],
    "matrix_rank": lambda x: torch.linalg.matrix_rank(x, tol=torch.tensor(0.1)),
}
CONTEXTS: dict[str, Callable[[bool], Any]] = {
    "in a mode": lambda is_deferred: deferred_mode() if is_deferred else fake_mode(),
    "outside": lambda is_deferred: contextlib.nullcontext(),
}


def _drawn() -> Tensor:
    return torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_plain_fakes(name: str, context: str) -> None:
    operator, real = OPERATORS[name], _drawn()
    eager, x = operator(real), fake_like(_drawn())
    with CONTEXTS[context](False):
        found = operator(x)
        if eager.requires_grad:
            found.abs().sum().backward()
    assert is_fake(found)
    assert _metadata(found) == _metadata(eager)
    if eager.requires_grad:
        eager.abs().sum().backward()
        assert x.grad is not None
        assert _metadata(x.grad) == _metadata(real.grad)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_deferred_tensors(name: str, context: str) -> None:
    operator = OPERATORS[name]
    eager = operator(_drawn().detach())
    with deferred_mode():
        x = _drawn().detach()
    with CONTEXTS[context](True):
        found = operator(x)
    assert _metadata(found) == _metadata(eager)
    assert torch.equal(materialize_tensor(found), eager)


def test_a_window_on_another_device_is_refused() -> None:
    with fake_mode(fake_cuda=True):
        x = torch.ones(2, 64, device="cuda")
    for context in (contextlib.nullcontext(), fake_mode(fake_cuda=True)):
        with context, pytest.raises(RuntimeError, match="same device"):
            torch.stft(x, 16, window=WINDOW, return_complex=True)


def _metadata(tensor: Any) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


TWO_DEVICES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "attention": lambda x, y: torch.nn.functional.scaled_dot_product_attention(x, y, x),
    "stft": lambda x, y: torch.stft(x[0, 0], 2, window=y[0, 0, 0], return_complex=True),
    "multi_dot": lambda x, y: torch.linalg.multi_dot([x[0, 0], y[0, 0]]),
}


@pytest.mark.parametrize("name", TWO_DEVICES)
@pytest.mark.parametrize("is_inside", [True, False])
def test_errors_name_the_devices_that_fakes_report(name: str, is_inside: bool) -> None:
    mode = fake_mode(fake_cuda=True)
    with mode:
        x, y = torch.rand(1, 1, 2, 2), torch.rand(1, 1, 2, 2, device="cuda")
    context = mode if is_inside else contextlib.nullcontext()
    with pytest.raises(RuntimeError, match=r"cpu.*cuda:0"), context:
        TWO_DEVICES[name](x, y)
