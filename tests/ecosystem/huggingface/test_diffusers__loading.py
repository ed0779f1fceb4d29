"""from_pretrained of models and pipelines of diffusers in a mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from tests.ecosystem.huggingface.pretrained import assert_loads_as_eager

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def unet() -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
    )


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole": ({}, {}),
    "in shards": ({"max_shard_size": "200KB"}, {}),
    "torch.save": ({"safe_serialization": False}, {"use_safetensors": False}),
    "cast": ({}, {"torch_dtype": torch.bfloat16}),
    "built first": ({}, {"low_cpu_mem_usage": False}),
    "device map": ({}, {"device_map": {"": "cpu"}}),
}


@pytest.mark.parametrize("form", FORMS)
def test_from_pretrained(form: str, tmp_path: Path) -> None:
    how_saved, how_loaded = FORMS[form]
    unet().save_pretrained(tmp_path, **how_saved)
    assert_loads_as_eager(lambda: diffusers.UNet2DModel.from_pretrained(tmp_path, **how_loaded))


def test_a_pipeline(tmp_path: Path) -> None:
    diffusers.DDPMPipeline(unet(), diffusers.DDPMScheduler()).save_pretrained(tmp_path)
    assert_loads_as_eager(lambda: diffusers.DDPMPipeline.from_pretrained(tmp_path).unet)
