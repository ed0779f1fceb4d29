"""timm: every model built and run forward on fakes; one of each kind deferred, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

from torchfake import deferred_init, fake_mode, is_fake, materialize_module

OF_EACH_KIND = [
    "test_byobnet", "test_convnext", "test_efficientnet", "test_mambaout", "test_nfnet",
    "test_resnet", "test_vit", "cait_xxs24_224", "coat_tiny", "crossvit_tiny_240",
    "deit_tiny_patch16_224", "fastvit_t8", "ghostnet_050", "levit_128s", "mobilenetv3_small_050",
    "mobilevit_xxs", "pvt_v2_b0", "regnetx_002", "repvit_m0_9", "xcit_nano_12_p8_224",
]  # fmt: skip


@pytest.mark.parametrize("name", timm.list_models())
def test_every_model_runs_forward(name: str) -> None:
    with fake_mode():
        model = timm.create_model(name).eval()
        size = model.default_cfg.get("input_size", (3, 224, 224))
        with torch.no_grad():
            result: Any = model(torch.empty(1, *size))
    assert is_fake(result[0] if isinstance(result, (tuple, list)) else result)
    assert all(is_fake(t) for t in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_deferred_models_have_the_values_of_eager(name: str) -> None:
    torch.manual_seed(0)
    eager = timm.create_model(name)
    torch.manual_seed(0)
    model = materialize_module(deferred_init(timm.create_model, name))
    expected, found = eager.state_dict(), model.state_dict()
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
