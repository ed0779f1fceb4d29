"""Models under autocast have eager's dtypes and values: outputs, gradients, training, inference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from tests._tensor.conftest import F16, F32, HALVES, dtypes, fake_copies
from torchfake import deferred_mode, fake_like, fake_mode, is_fake, materialize_tensor


def conv_net() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 8),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(72, 5),
        nn.LogSoftmax(dim=-1),
    )
    return nn.Sequential(*layers), (torch.randn(2, 3, 8, 8, requires_grad=True),)


def attention() -> tuple[nn.Module, tuple[Any, ...]]:
    x = torch.randn(2, 5, 8, requires_grad=True)
    return nn.MultiheadAttention(8, 2, batch_first=True), (x, x, x)


def encoder() -> tuple[nn.Module, tuple[Any, ...]]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return layer, (torch.randn(2, 5, 8, requires_grad=True),)


def decoder() -> tuple[nn.Module, tuple[Any, ...]]:
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    return layer, (torch.randn(2, 5, 8), torch.randn(2, 3, 8))


def lstm() -> tuple[nn.Module, tuple[Any, ...]]:
    state = (torch.randn(4, 2, 6), torch.randn(4, 2, 6))
    return nn.LSTM(4, 6, num_layers=2, bidirectional=True), (torch.randn(5, 2, 4), state)


def lstm_with_projection() -> tuple[nn.Module, tuple[Any, ...]]:
    state = (torch.randn(1, 2, 3), torch.randn(1, 2, 6))
    return nn.LSTM(4, 6, proj_size=3, batch_first=True), (torch.randn(2, 5, 4), state)


def gru() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.GRU(4, 6), (torch.randn(5, 2, 4), torch.randn(1, 2, 6))


def rnn() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.RNN(4, 6), (torch.randn(5, 2, 4), torch.randn(1, 2, 6))


def lstm_cell() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.LSTMCell(4, 6), (torch.randn(2, 4),)


def bilinear() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.Bilinear(4, 5, 6), (torch.randn(2, 4), torch.randn(2, 5))


class LearnedQueries(nn.Module):
    """A weight that is cast once, for attention and for a product; a kernel that casts inside."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 1, 4, 4))

    def forward(self, x: torch.Tensor) -> Any:
        found = F.scaled_dot_product_attention(self.queries, self.queries, x)
        again = F.scaled_dot_product_attention(self.queries, x, self.queries)
        return found, again, self.queries @ x, torch.linalg.pinv(x)


def learned_queries() -> tuple[nn.Module, tuple[Any, ...]]:
    return LearnedQueries(), (torch.randn(1, 1, 4, 4),)


class Losses(nn.Module):
    """Functions that C++ composes of listed operators."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        h = F.layer_norm(self.table(labels) * self.scale + x, (4,))
        return (
            F.cross_entropy(h, labels % 4, label_smoothing=0.1),
            torch.einsum("bi,bj->bij", h, h),
            torch.tensordot(h, h.t(), 1),
            torch.chain_matmul(h, h.t(), h),
            F.cosine_similarity(h, x),
            torch.norm(h, dim=-1),
            h.norm(),
            torch.cdist(h, x),
            h @ x.t(),
        )


def losses() -> tuple[nn.Module, tuple[Any, ...]]:
    return Losses(), (torch.randn(3, 4), torch.tensor([0, 3, 5]))


def gpt2() -> tuple[nn.Module, tuple[Any, ...]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, n_positions=16, vocab_size=32, use_cache=False
    )
    ids = torch.arange(12).reshape(2, 6)
    return transformers.GPT2LMHeadModel(config), (ids,)


MODELS = [
    conv_net,
    attention,
    encoder,
    decoder,
    lstm,
    lstm_with_projection,
    gru,
    rnn,
    lstm_cell,
    bilinear,
    learned_queries,
    losses,
    gpt2,
]


def train(model: nn.Module, inputs: tuple[Any, ...], device_type: str, half: torch.dtype) -> Any:
    """The dtypes of the outputs and of all gradients of one step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.chain_matmul is deprecated
        with torch.autocast(device_type, dtype=half):
            outputs = pytree.tree_leaves(model(*inputs))
    tensors = [t for t in outputs if isinstance(t, torch.Tensor)]
    sum(t.float().sum() for t in tensors if t.requires_grad).backward()
    leaves = [*model.parameters(), *pytree.tree_leaves(inputs)]
    grads = [leaf.grad.dtype for leaf in leaves if getattr(leaf, "grad", None) is not None]
    return dtypes(tensors), grads, {is_fake(t) for t in tensors}


@HALVES
@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_training_step(build: Callable[[], Any], half: torch.dtype) -> None:
    model, inputs = build()
    fake_model, fake_inputs = fake_like(model), fake_copies(inputs)
    *expected, _ = train(model, inputs, "cpu", half)
    assert [*train(fake_model, fake_inputs, "cpu", half)] == [*expected, {True}]


def values_of_a_step(build: Callable[[], Any], half: torch.dtype) -> list[torch.Tensor]:
    """The outputs of a step of training, then the gradients."""
    torch.manual_seed(0)
    model, inputs = build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.chain_matmul is deprecated
        with torch.autocast("cpu", dtype=half):
            outputs = pytree.tree_leaves(model(*inputs))
    tensors = [t for t in outputs if isinstance(t, torch.Tensor)]
    sum(t.float().square().sum() for t in tensors if t.requires_grad).backward()  # type: ignore
    leaves = [*model.parameters(), *pytree.tree_leaves(inputs)]
    grads = [leaf.grad for leaf in leaves if getattr(leaf, "grad", None) is not None]
    return [tensor.detach() for tensor in (*tensors, *grads)]


@HALVES
@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_the_values_of_a_training_step(build: Callable[[], Any], half: torch.dtype) -> None:
    expected = values_of_a_step(build, half)
    with deferred_mode():
        found = values_of_a_step(build, half)
    for tensor, value in zip(map(materialize_tensor, found), expected, strict=True):
        assert torch.equal(tensor, value)


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_inference(build: Callable[[], Any]) -> None:
    model, inputs = build()
    fake_model, fake_inputs = fake_like(model).eval(), fake_copies(inputs)
    model.eval()
    with warnings.catch_warnings(), torch.no_grad(), torch.autocast("cpu"):
        warnings.simplefilter("ignore")
        assert dtypes(fake_model(*fake_inputs)) == dtypes(model(*inputs))


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_training_step_on_fake_cuda(build: Callable[[], Any]) -> None:
    with fake_mode(fake_cuda=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CPU build warns that it lacks cuDNN
        model, inputs = build()
        inputs = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cuda(), inputs)
        _, grads, fake = train(model.cuda(), inputs, "cuda", F16)
    assert set(grads) == {F32}
    assert fake == {True}
