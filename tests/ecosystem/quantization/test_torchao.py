"""torchao: models quantized as fakes and deferred, their bytes, and its optimizers in estimates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchao.quantization as quantization
from torch import nn
from torchao import optim
from torchao.prototype._nf4tensor_api import NF4WeightOnlyConfig
from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
from torchao.prototype.quantized_training import (
    bitnet_training,
    int8_mixed_precision_training,
    int8_weight_only_quantized_training,
)

from tests.ecosystem.quantization import memory
from torchfake import (
    check,
    deferred_init,
    dematerialize_module,
    estimate,
    fake_like,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_module,
    summary,
)
from torchfake._torch import subclass

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIGS: dict[str, Callable[[], Any]] = {
    "float8": quantization.Float8WeightOnlyConfig,
    "int8": quantization.Int8WeightOnlyConfig,
    "int8 activations": quantization.Int8DynamicActivationInt8WeightConfig,
    "intx activations": quantization.Int8DynamicActivationIntxWeightConfig,
    "int4": lambda: quantization.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=quantization.PerGroup(32)
    ),
    "nf4": NF4WeightOnlyConfig,
    "nvfp4": NVFP4WeightOnlyConfig,
    "int8 training": int8_weight_only_quantized_training,
    "int8 products": int8_mixed_precision_training,
    "bitnet": bitnet_training,
}
TRAINED = ("int8 training", "int8 products", "bitnet")


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(torch.bfloat16)
    quantization.quantize_(net, CONFIGS[name]())
    return net


def inputs(**where: Any) -> torch.Tensor:
    return torch.ones(4, 256, dtype=torch.bfloat16, **where)


def leaves(module: nn.Module) -> list[torch.Tensor]:
    return [leaf for p in module.parameters() for leaf in subclass.leaf_tensors(p)]


def memory_of(module: nn.Module) -> int:
    return memory.bytes_of(leaves(module))


@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_are_those_of_what_is_stored(name: str) -> None:
    real = build(name)
    with fake_mode():
        fake = build(name)
    for net in (real, fake, fake_like(real)):
        assert summary(net).tree.size.parameter_bytes == memory_of(real)
    assert is_fake(fake)
    step = estimate(real, inputs(), mode="inference")
    assert step.peak.by_category["parameters"] == memory_of(real)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_of_ones_own_counts_each_byte_once(name: str) -> None:
    with fake_mode(fake_cuda="h100-80gb"):
        net = build(name).cuda()
        x = inputs(device="cuda")

        def step() -> torch.Tensor:
            with torch.no_grad():
                return net(x)  # type: ignore[no-any-return]

        found = estimate(step, round_to=1).peak.by_category
        assert found == estimate(net, x, mode="inference", round_to=1).peak.by_category
    assert found["parameters"] == memory_of(net)
    assert found["inputs"] == x.nbytes


@pytest.mark.parametrize("name", CONFIGS)
def test_deferred_models_have_the_bits_of_eager(name: str) -> None:
    eager, net = build(name), deferred_init(build, name)
    assert is_deferred(net)
    materialize_module(net)
    for one, other in zip(net.parameters(), eager.parameters(), strict=True):
        assert (type(one), one.dtype, one.requires_grad) == (
            type(other), other.dtype, other.requires_grad,
        )  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(leaves(net), leaves(eager), strict=True))
    torch.manual_seed(1)
    wanted = eager(inputs())
    torch.manual_seed(1)
    assert torch.equal(net(inputs()), wanted)
    assert memory_of(dematerialize_module(net)) == memory_of(eager)


@pytest.mark.parametrize("name", CONFIGS)
def test_runs_on_fake_cuda(name: str) -> None:
    with fake_mode(fake_cuda="h100-80gb"):
        net = build(name).cuda()
        x = inputs(device="cuda", requires_grad=True)
        out = net(x)
        out.sum().backward()
    assert out.device == net[0].weight.device == torch.device("cuda:0")  # type: ignore[index,union-attr]
    real = inputs(requires_grad=True)
    build(name)(real).sum().backward()
    assert (x.grad is None) == (real.grad is None)
    if name in TRAINED:
        assert net[0].weight.grad is not None  # type: ignore[index,union-attr]
    assert check(build(name), inputs()).output.shape == (4, 256)


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8", "Adam8bit"])
def test_the_state_of_optimizers(name: str) -> None:
    make = getattr(optim, name)
    net = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))
    optimizer = make(net.parameters())
    net(torch.ones(4, 256)).sum().backward()
    step = estimate(net, torch.ones(4, 256), optimizer=make)
    with torch.compiler.set_stance("force_eager"):  # eager's is compiled, which takes a minute
        optimizer.step()
    held = [leaf for state in optimizer.state.values() for t in state.values()
            if isinstance(t, torch.Tensor) for leaf in subclass.leaf_tensors(t)]  # fmt: skip
    assert step.peak.by_category["optimizer state"] == memory.bytes_of(held)
