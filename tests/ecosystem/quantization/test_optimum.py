"""optimum-quanto: models quantized by transformers' QuantoConfig, and by quanto itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from optimum.quanto import freeze, qfloat8, qint2, qint4, qint8, quantize
from torch import nn
from transformers import QuantoConfig

from tests.ecosystem.quantization import quantized_models as models
from torchfake import deferred_init, fake_like, fake_mode, materialize_module, summary

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("weights", ["int8", "int4", "int2", "float8"])
def test_models_of_transformers(weights: str, tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    models.assert_loads_as_eager(folder, lambda: QuantoConfig(weights=weights))


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.Linear(256, 32)).bfloat16()
    kind = {"qint2": qint2, "qint4": qint4, "qint8": qint8, "qfloat8": qfloat8}[name]
    quantize(net, weights=kind)
    freeze(net)
    return net


@pytest.mark.parametrize("name", ["qint2", "qint4", "qint8", "qfloat8"])
def test_layers(name: str) -> None:
    real = build(name)
    with fake_mode():
        fake = build(name)
    x = torch.ones(3, 128, dtype=torch.bfloat16)
    for net in (real, fake, fake_like(real)):
        size = summary(net).tree.size
        assert size.parameter_bytes + size.buffer_bytes == models.bytes_of(models.all_held(real))
    with fake_mode():  # qint4 makes new tensors while it runs
        assert fake(x).shape == (3, 32)
    deferred = materialize_module(deferred_init(build, name))
    assert [type(p) for p in deferred.parameters()] == [type(p) for p in real.parameters()]
    assert torch.equal(deferred(x), real(x))


def test_on_fake_cuda(tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    with fake_mode(fake_cuda=True):
        net = models.load(folder, QuantoConfig(weights="int8"), device_map="cuda")
        assert net(models.TOKENS.cuda()).logits.is_cuda
