"""Times of Stable Diffusion XL that diffusers has published, and what an estimate says of them.
These rows are only reported: no efficiency was chosen on them.

The source is huggingface/diffusers, docs/source/en/tutorials/fast_diffusion.md (Apache 2.0): an
A100 of 80 GB, 30 steps of one image of 1,024 x 1,024 pixels in bfloat16, without compilation. The
estimate is that of 30 passes of the U-Net over two latents (guidance), without the text encoders
and the decoder. The row in float32 is left out: whether TF32 was allowed is not told.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from torchfake import estimate, fake_mode

STEPS = 30


class Row(NamedTuple):
    """One line of the source."""

    setting: str
    seconds: float
    is_fused: bool  # attention

    def estimated(self) -> float:
        """The seconds of all steps that an estimate gives."""
        with fake_mode():
            model = _unet(self.is_fused).to(torch.bfloat16)
            inputs = {
                "sample": torch.empty(2, 4, 128, 128, dtype=torch.bfloat16),
                "timestep": torch.empty((), dtype=torch.long),
                "encoder_hidden_states": torch.empty(2, 77, 2048, dtype=torch.bfloat16),
                "added_cond_kwargs": {
                    "text_embeds": torch.empty(2, 1280, dtype=torch.bfloat16),
                    "time_ids": torch.empty(2, 6, dtype=torch.bfloat16),
                },
            }
        found = estimate(model, inputs, gpu="a100-80gb", mode="inference", answer="typical")
        assert found.step_seconds is not None
        return STEPS * found.step_seconds


ROWS = (
    Row("attention written out", 4.63, False),
    Row("fused attention", 3.31, True),
)


def _unet(is_fused: bool) -> Any:
    """The U-Net of SDXL, with the numbers of its config.json."""
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
    return model.eval()


def report() -> Iterator[str]:
    """The lines of the rows."""
    for row in ROWS:
        found = row.estimated()
        times = f"{row.seconds} s, estimate {found:.2f}, {found / row.seconds:.2f}"
        yield f"SDXL in bfloat16, {row.setting}: {times}, only reported"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in report():
        print(line, flush=True)  # noqa: T201
