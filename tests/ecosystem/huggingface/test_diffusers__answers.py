"""A pipeline that ends with images asks for their values."""

from __future__ import annotations

from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

from torchfake import fake_mode


def test_a_pipeline_gives_images() -> None:
    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    with fake_mode(answer="typical") as mode:
        unet = UNet2DModel(
            sample_size=32,
            block_out_channels=(32, 64),
            down_block_types=down,
            up_block_types=up,
            norm_num_groups=8,
        )
        pipeline = DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=10))
        pipeline.set_progress_bar_config(disable=True)
        images = pipeline(batch_size=2, num_inference_steps=2).images
    assert [image.size for image in images] == [(32, 32)] * 2
    assert [answer.asked_by for answer in mode.answers] == ["numpy()"]
