"""Memory of a step, byte for byte what a real run on the CPU holds; the oracle counts storages."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.inspect.memory.memory_oracle import forward_peak, training_peaks
from tests.inspect.small_models import MODELS, model_and_inputs
from torchfake.inspect import Estimate, estimate

OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adam": partial(torch.optim.Adam, amsgrad=True),
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "adafactor": torch.optim.Adafactor,
    "foreach": partial(torch.optim.AdamW, foreach=True),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adamw", "momentum", None])
def test_training_is_byte_exact(name: str, optimizer: str | None) -> None:
    model, inputs = model_and_inputs(name)
    make = None if optimizer is None else OPTIMIZERS[optimizer]
    found = estimate(model, inputs, optimizer=make, mode="training")
    first, second = training_peaks(model, inputs, make)
    assert (found.first_step_peak_bytes, found.peak_bytes) == (first, second)


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_inference_are_byte_exact(name: str) -> None:
    model, inputs = model_and_inputs(name)
    assert estimate(model, inputs, mode="forward").peak_bytes == forward_peak(
        model, inputs, grad=True
    )
    found = estimate(model, inputs)
    assert found.mode == "inference"
    assert found.peak_bytes == forward_peak(model.eval(), inputs, grad=False)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_byte_exact(optimizer: str) -> None:
    model, inputs = model_and_inputs("vit")
    found = estimate(model, inputs, optimizer=OPTIMIZERS[optimizer])
    first, second = training_peaks(model, inputs, OPTIMIZERS[optimizer])
    assert (found.first_step_peak_bytes, found.peak_bytes) == (first, second)


@pytest.mark.parametrize("name", ["gpt2", "llama", "convnet"])
def test_autocast_is_byte_exact(name: str) -> None:
    model, inputs = model_and_inputs(name)
    found = estimate(model, inputs, optimizer="adamw", autocast="bf16")
    first, second = training_peaks(model, inputs, torch.optim.AdamW, autocast=torch.bfloat16)
    assert (found.first_step_peak_bytes, found.peak_bytes) == (first, second)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_is_byte_exact_and_saves_activations(use_reentrant: bool) -> None:
    model, inputs = model_and_inputs("llama")
    plain = estimate(model, inputs, optimizer="sgd")
    model.config.use_cache = False
    old_name = model.gradient_checkpointing_enable  # the only one before 5.23
    getattr(model, "activation_checkpointing_enable", old_name)({"use_reentrant": use_reentrant})
    found = estimate(model, inputs, optimizer="sgd")
    first, second = training_peaks(model, inputs, torch.optim.SGD)
    assert (found.first_step_peak_bytes, found.peak_bytes) == (first, second)

    def most(of: Estimate) -> int:
        timeline = of.timeline
        return int(timeline.num_bytes[:, timeline.categories.index("activations")].max())

    assert most(found) < most(plain)


def test_frozen_and_tied_parameters() -> None:
    model, inputs = model_and_inputs("gpt2")  # its head is tied to its embedding
    for block in model.transformer.h[:2]:
        block.requires_grad_(False)
    found = estimate(model, inputs, optimizer="adamw")
    assert (found.first_step_peak_bytes, found.peak_bytes) == training_peaks(
        model, inputs, torch.optim.AdamW
    )


# Generated models.


LAYERS = {
    "linear": lambda: nn.Linear(8, 8),
    "norm": lambda: nn.LayerNorm(8),
    "batchnorm": lambda: nn.BatchNorm1d(8),
    "relu": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)),
    "gelu": nn.GELU,
    "softmax": lambda: nn.Softmax(-1),
    "dropout": lambda: nn.Dropout(0.5),
    "glu": lambda: nn.Sequential(nn.Linear(8, 16), nn.GLU()),
    "bilinear": lambda: Twice(),
    "residual": lambda: Residual(nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8))),
}


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Twice(nn.Module):
    """Uses one layer twice, so that its gradient is added up."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.inner(x.tanh())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=7),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    batch=st.integers(2, 5),
)
def test_generated_models_are_byte_exact(layers: list[str], optimizer: str, batch: int) -> None:
    model = nn.Sequential(nn.Linear(8, 8), *(LAYERS[name]() for name in layers))
    inputs = {"input": torch.randn(batch, 8)}
    found = estimate(model, inputs, optimizer=OPTIMIZERS[optimizer])
    assert (found.first_step_peak_bytes, found.peak_bytes) == training_peaks(
        model, inputs, OPTIMIZERS[optimizer]
    )
