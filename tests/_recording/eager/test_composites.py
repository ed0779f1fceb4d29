"""Composites that C++ decomposes otherwise for subclasses: recorded as for plain tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracle import bits
from torchfake import deferred_mode, fake_like, is_fake, materialize_tensor

CHANNELS_LAST = torch.channels_last
TARGETS = torch.arange(64) % 7
LENGTHS = torch.tensor([3, 8, 5, 1])

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "svdvals": torch.linalg.svdvals,
    "svdvals-driver": lambda x: torch.linalg.svd(x, full_matrices=False)[1] + 1,
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x + x.mT),
    "eigvalsh-upper": lambda x: torch.linalg.eigvalsh(x + x.mT, UPLO="U"),
    "matrix_norm-2": lambda x: torch.linalg.matrix_norm(x, 2),
    "matrix_norm-nuc": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "norm-nuc": lambda x: torch.norm(x[0], "nuc"),
    "cond": torch.linalg.cond,
    "matrix_rank": torch.linalg.matrix_rank,
    "pinv": lambda x: torch.linalg.pinv(x, hermitian=True),
    "scaled": lambda x: x / torch.linalg.svdvals(x)[0, 0].item(),
    "branch": lambda x: x if torch.linalg.matrix_norm(x[0], 2).item() > 9 else -x,
    "matmul": lambda x: x @ x[:1],
    "matmul-first": lambda x: x[:1] @ x,
    "matmul-4d": lambda x: x.view(2, 2, 16, 16) @ x[:1].view(1, 1, 16, 16),
    "quantile": lambda x: torch.quantile(x, 0.3, dim=0),
    "nanquantile": lambda x: torch.nanquantile(x, torch.tensor([0.1, 0.6])),
    "stft": lambda x: torch.view_as_real(
        torch.stft(x.flatten(), 16, window=torch.hann_window(16), return_complex=True)
    ),
    "group_norm": lambda x: F.group_norm(x.view(4, 4, 8, 8).to(memory_format=CHANNELS_LAST), 2),
    "cross_entropy": lambda x: F.cross_entropy(
        x.view(64, 16), TARGETS, x[0, 0].abs(), ignore_index=3, label_smoothing=0.1
    ),
    "ctc_loss": lambda x: F.ctc_loss(
        x.log_softmax(2).transpose(0, 1), TARGETS[:32].view(4, 8) + 1, LENGTHS + 8, LENGTHS
    ),
    "ctc_loss-none": lambda x: F.ctc_loss(
        x[0].log_softmax(1), TARGETS[:5] + 1, torch.tensor(16), torch.tensor(5), reduction="none"
    ),
    "embedding_bag": lambda x: F.embedding_bag(
        TARGETS[:10], x[0], torch.tensor([0, 4, 10]), mode="sum", include_last_offset=True
    ),
    "embedding_bag-max": lambda x: F.embedding_bag(
        TARGETS[:10], x[0], torch.tensor([0, 4, 10]), mode="max", include_last_offset=True
    ),
}


def drawn() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 16, 16)


def made_real(result: Tensor) -> Tensor:
    return materialize_tensor(result) if is_fake(result) else result


def in_mode(program: Callable[[Tensor], Tensor]) -> Tensor:
    with deferred_mode():
        return program(drawn())


def of_real(program: Callable[[Tensor], Tensor]) -> Tensor:
    real = drawn()
    with deferred_mode():
        return program(real)


def after_mode(program: Callable[[Tensor], Tensor]) -> Tensor:
    with deferred_mode():
        deferred = drawn()
    return program(deferred)


def in_inference_mode(program: Callable[[Tensor], Tensor]) -> Tensor:
    with deferred_mode(), torch.inference_mode():
        return program(drawn())


@pytest.mark.parametrize("place", [in_mode, of_real, after_mode, in_inference_mode])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_of_eager(name, place):
    expected = PROGRAMS[name](drawn())
    got = made_real(place(PROGRAMS[name]))
    assert (got.shape, got.stride(), got.dtype) == (
        expected.shape,
        expected.stride(),
        expected.dtype,
    )
    assert bits(got) == bits(expected)


@pytest.mark.parametrize(
    "program",
    [
        torch.linalg.svdvals,
        lambda x: torch.linalg.eigvalsh(x + x.mT),
        lambda x: x @ x[:1],
        F.mish,
    ],
)
def test_gradients(program):
    def gradient() -> Tensor:
        leaf = drawn().requires_grad_()
        program(leaf).square().sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    expected = gradient()
    with deferred_mode():
        got = gradient()
    assert bits(made_real(got)) == bits(expected)


def gradients_of_products() -> list[Tensor]:
    found = []
    for dim, num_zeros in itertools.product((None, 0, -1), (0, 1, 2)):
        x = torch.randn(5, 7)
        x[0, :num_zeros] = 0
        x.requires_grad_()
        product = x.prod() if dim is None else x.prod(dim)
        found += torch.autograd.grad(product, x, torch.randn(product.shape))
    return found


def test_gradients_of_products() -> None:
    torch.manual_seed(0)
    expected = gradients_of_products()
    torch.manual_seed(0)
    with deferred_mode():
        recorded = gradients_of_products()
    for one, other in zip(recorded, expected, strict=True):
        assert bits(materialize_tensor(one)) == bits(other)


def test_group_norm_of_a_plain_fake_keeps_channels_last() -> None:
    real = drawn().view(4, 4, 8, 8).to(memory_format=CHANNELS_LAST)
    assert F.group_norm(fake_like(real), 2).stride() == F.group_norm(real, 2).stride()
