"""torchao by transformers' TorchAoConfig."""

from __future__ import annotations

from pathlib import Path

import pytest
import torchao.quantization as quantization
from transformers import TorchAoConfig

from tests.ecosystem.quantization import quantized_models as models
from torchfake import fake_mode

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMES = {"int8": "Int8WeightOnlyConfig", "fp8": "Float8WeightOnlyConfig"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bytes_are_known_without_quantizing(scheme: str, tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    config = TorchAoConfig(getattr(quantization, SCHEMES[scheme])())
    models.assert_weights_are_known(folder, config, scheme)


NAMES = (
    "Int8WeightOnlyConfig",
    "Float8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
)


@pytest.mark.parametrize("name", NAMES)
def test_models(name: str, tmp_path: Path) -> None:
    folder = models.save_model(tmp_path)
    make = getattr(quantization, name)
    models.assert_loads_as_eager(folder, lambda: TorchAoConfig(make()))
    with fake_mode(fake_cuda="h100-80gb"):
        net = models.load(folder, TorchAoConfig(make()), device_map="cuda")
        assert net(models.TOKENS.cuda()).logits.is_cuda
