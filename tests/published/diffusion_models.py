"""Diffusion models, with the numbers of their published configurations, and inputs of one pass.

Numbers are those of config.json in stabilityai/stable-diffusion-xl-base-1.0, in FLUX.1-dev and
-schnell of black-forest-labs, and in Lightricks/LTX-Video-0.9.7-dev.
"""

from __future__ import annotations

from typing import Any

import torch

Pass = tuple[Any, dict[str, Any]]
"""A model and its inputs, made in fake mode."""


def sdxl(dtype: torch.dtype, batch: int, *, is_fused: bool) -> Pass:
    """The U-Net of SDXL on latents of 1,024 x 1,024 pixels, with fused attention or without."""
    from diffusers import UNet2DConditionModel
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    model = UNet2DConditionModel(
        sample_size=128,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
        use_linear_projection=True,
    )
    model.set_attn_processor(AttnProcessor2_0() if is_fused else AttnProcessor())
    inputs = {
        "sample": torch.empty(batch, 4, 128, 128, dtype=dtype),
        "timestep": torch.empty((), dtype=torch.long),
        "encoder_hidden_states": torch.empty(batch, 77, 2048, dtype=dtype),
        "added_cond_kwargs": {
            "text_embeds": torch.empty(batch, 1280, dtype=dtype),
            "time_ids": torch.empty(batch, 6, dtype=dtype),
        },
    }
    return model.to(dtype).eval(), inputs


def flux(dtype: torch.dtype, num_text: int, *, is_guided: bool) -> Pass:
    """The transformer of FLUX.1 on latents of 1,024 x 1,024 pixels and so many tokens of text."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(guidance_embeds=is_guided).to(dtype).eval()
    inputs = {
        "hidden_states": torch.empty(1, 4096, 64, dtype=dtype),
        "encoder_hidden_states": torch.empty(1, num_text, 4096, dtype=dtype),
        "pooled_projections": torch.empty(1, 768, dtype=dtype),
        "timestep": torch.empty(1, dtype=dtype),
        "img_ids": torch.empty(4096, 3, dtype=dtype),
        "txt_ids": torch.empty(num_text, 3, dtype=dtype),
    }
    if is_guided:
        inputs["guidance"] = torch.empty(1, dtype=dtype)
    return model, inputs


def ltx() -> Pass:
    """The transformer of LTX-Video 13B on 161 frames of 512 x 704 pixels, in bfloat16."""
    from diffusers import LTXVideoTransformer3DModel

    dtype = torch.bfloat16
    model = LTXVideoTransformer3DModel(
        num_layers=48, attention_head_dim=128, cross_attention_dim=4096
    )
    inputs = {
        "hidden_states": torch.empty(1, 7392, 128, dtype=dtype),
        "encoder_hidden_states": torch.empty(1, 256, 4096, dtype=dtype),
        "encoder_attention_mask": torch.ones(1, 256, dtype=dtype),
        "timestep": torch.empty(1, dtype=dtype),
        "video_coords": torch.empty(1, 3, 7392, dtype=dtype),
    }
    return model.to(dtype).eval(), inputs
