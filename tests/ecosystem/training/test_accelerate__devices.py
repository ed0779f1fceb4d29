"""accelerate's Accelerator on fake devices: it finds them, and trains there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import set_seed
from torch import nn

from torchfake import fake_mode


def _forget_state() -> None:
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    GradientState._reset_state()


@pytest.fixture(autouse=True)
def _state() -> Iterator[None]:
    """accelerate has one state for the process, which transformers and models of others make too:
    with it, the device is that of the first to ask.
    """
    _forget_state()
    yield
    _forget_state()


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize("device_type", ["cuda", "mps"])
def test_an_accelerator_trains_on_a_fake_device(device_type: str, precision: str) -> None:
    with fake_mode(fake_device=device_type):
        accelerator = Accelerator(mixed_precision=precision)
        assert accelerator.device.type == device_type
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer = accelerator.prepare(model, optimizer)
        set_seed(3)
        with accelerator.accumulate(model):
            out = model(torch.randn(3, 4, device=accelerator.device))
            accelerator.backward(out.pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
        accelerator.free_memory()
    assert {p.device for p in model.parameters()} == {torch.device(device_type, 0)}
    assert out.device == torch.device(device_type, 0)
