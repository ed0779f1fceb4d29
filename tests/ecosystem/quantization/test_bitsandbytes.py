"""bitsandbytes: layers of 8 and 4 bits as fakes and deferred, and its optimizers in estimates."""

from __future__ import annotations

from typing import Any

import bitsandbytes as bnb
import pytest
import torch
from torch import nn

from tests.ecosystem.quantization import memory
from tests.programs import assert_program
from torchfake import (
    deferred_init,
    errors,
    estimate,
    fake_like,
    fake_mode,
    materialize_module,
    summary,
)
from torchfake._tensor.copies import held_tensors

pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = ("nf4", "fp4", "int8")


def build(kind: str, device: str = "cpu") -> Any:
    torch.manual_seed(0)
    if kind == "int8":
        layer: Any = bnb.nn.Linear8bitLt(128, 256, has_fp16_weights=False)
    else:
        layer = bnb.nn.Linear4bit(128, 256, quant_type=kind, compress_statistics=True)
    layer.load_state_dict(nn.Linear(128, 256).state_dict())
    return nn.Sequential(layer).to(device)  # which quantizes


def memory_of(module: nn.Module) -> int:
    return memory.bytes_of(t for p in module.parameters() for t in held_tensors(p))


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_codes_and_scales(kind: str) -> None:
    real = build(kind)
    with fake_mode():
        fake = build(kind)
        out = build(kind)(torch.ones(3, 128))
    for net in (real, fake, fake_like(real)):
        assert summary(net).tree.size.parameter_bytes == memory_of(real)
    assert memory_of(real) < 128 * 256 + 4096
    assert out.shape == (3, 256)
    step = estimate(real, torch.ones(3, 128), mode="inference")
    assert step.peak.by_category["parameters"] >= memory_of(real)


@pytest.mark.parametrize("kind", KINDS)
def test_deferred_layers_have_the_bits_of_eager(kind: str) -> None:
    eager, net = build(kind), materialize_module(deferred_init(build, kind))
    pairs = zip(held_tensors(net[0].weight), held_tensors(eager[0].weight), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert type(net[0].weight) is type(eager[0].weight)
    assert torch.equal(net(torch.ones(3, 128)), eager(torch.ones(3, 128)))


@pytest.mark.parametrize("kind", KINDS)
def test_on_fake_cuda(kind: str) -> None:
    with fake_mode(fake_cuda=True):
        net = build(kind, "cuda")
        assert net(torch.ones(3, 128, device="cuda")).is_cuda


@pytest.mark.parametrize("name", ["AdamW8bit", "Adam8bit", "AdEMAMix8bit", "AdamW"])
def test_the_state_of_optimizers(name: str) -> None:
    make = getattr(bnb.optim, name)
    net = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))
    step = estimate(net, torch.ones(4, 256), optimizer=make)
    optimizer = make(net.parameters())
    net(torch.ones(4, 256)).sum().backward()
    optimizer.step()
    held = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    assert step.peak.by_category["optimizer state"] == memory.bytes_of(held)


@pytest.mark.parametrize("name", ["LAMB", "LAMB8bit", "LARS", "LARS8bit"])
def test_optimizers_that_hand_norms_to_their_kernels(name: str) -> None:
    """C++ takes them as numbers: they are asked for on fakes, and computed in a deferred mode."""

    def program() -> Any:
        layer = nn.Linear(64, 80)
        options = {"momentum": 0.9} if "LARS" in name else {}
        optimizer = getattr(bnb.optim, name)(layer.parameters(), lr=0.01, **options)
        layer(torch.randn(3, 64)).sum().backward()
        optimizer.step()
        return layer

    assert_program(program, answer="typical")
    with fake_mode(), pytest.raises(errors.UnknownValueError, match="linalg_vector_norm"):
        program()
