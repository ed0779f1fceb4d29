"""Arguments of diffusers' models by name: latents, times, embeddings of texts, positions.

Input: a model. Output: the arguments of its ``forward``. Invariant: a name has the same meaning in
all models, except for those in EXCEPTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from torchfake.errors import InputsError
from torchfake.inspect.inputs.hints import as_options
from torchfake.inspect.inputs.libraries.diffusion_sizes import DiffusionSizes, is_autoencoder
from torchfake.inspect.inputs.libraries.pictures import filled

Factory = Callable[[DiffusionSizes], Any]


def diffusion_arguments(
    model: nn.Module, *, batch: int, seq: int | None
) -> tuple[dict[str, Any], int | None]:
    """The arguments of a model of diffusers, and the number of text tokens, if there is a text.

    Raises:
        InputsError: if the model needs an argument that no factory makes.
    """
    sizes = DiffusionSizes(model, batch=batch, seq=seq)
    own = next((EXCEPTIONS[key] for key in EXCEPTIONS if sizes.name.startswith(key)), {})
    made: dict[str, Any] = {}
    for name in _needed(sizes, own):
        factory = own.get(name) or FACTORIES.get(name)
        if factory is None:
            raise InputsError(
                f"{sizes.name} needs {name!r}, which cannot be made here: make the inputs "
                f"yourself, inside fake_mode(), or with --input {name}=DTYPE[SIZES]"
                f"{''.join(f' {text}' for text in [as_options(made)] if text)}"
            )
        value = factory(sizes)
        if value is not None:
            made[name] = value
    if seq is not None and not sizes.uses_seq:
        raise InputsError(f"{sizes.name} takes no text, and so no seq: leave it out")
    return made, sizes.seq if sizes.uses_seq else None


def _needed(sizes: DiffusionSizes, own: dict[str, Factory]) -> Iterator[str]:
    for name, parameter in sizes.arguments.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in own or name in _ALWAYS or parameter.default is parameter.empty:
            yield name


def _latents(sizes: DiffusionSizes) -> torch.Tensor:
    if is_autoencoder(sizes.model):
        return _sample(sizes)
    if sizes.is_packed:
        return _packed(sizes)
    return sizes.filled(sizes.num_channels, *sizes.latent)


def _sample(sizes: DiffusionSizes) -> torch.Tensor:
    """A picture, or a video of nine frames, or a second of sound, for an autoencoder."""
    channels = sizes.number("in_channels", "audio_channels", default=3)
    if "Oobleck" in sizes.name or "Audio" in sizes.name:
        return sizes.filled(channels, 44_100 // 2048 * 2048)
    side = sizes.number("sample_size", "sample_height", default=256)
    has_time = any(isinstance(module, nn.Conv3d) for module in sizes.model.modules())
    return sizes.filled(channels, *((9,) if has_time else ()), side, side)


def _times(sizes: DiffusionSizes) -> torch.Tensor:
    return torch.full((sizes.batch,), 500)


def _float_times(sizes: DiffusionSizes) -> torch.Tensor:
    return sizes.filled()


def _texts(sizes: DiffusionSizes) -> torch.Tensor:
    return sizes.filled(sizes.seq, sizes.text_width)


def _text_mask(sizes: DiffusionSizes) -> torch.Tensor:
    return torch.ones(sizes.batch, sizes.seq, dtype=torch.bool)


def _width(*keys: str, default: int) -> Factory:
    return lambda sizes: sizes.filled(sizes.number(*keys, default=default))


def _picture_positions(sizes: DiffusionSizes) -> torch.Tensor:
    rows, columns = sizes.grid
    index = torch.arange(rows * columns)
    axes = len(sizes.value("axes_dims_rope", "axes_dim", default=(16, 56, 56)))
    ids = torch.zeros(rows * columns, axes)
    ids[:, -2], ids[:, -1] = index // columns, index % columns
    return ids


def _text_positions(sizes: DiffusionSizes) -> torch.Tensor:
    return torch.zeros(sizes.seq, len(sizes.value("axes_dims_rope", default=(16, 56, 56))))


def _guidance(sizes: DiffusionSizes) -> torch.Tensor | None:
    return sizes.filled() if sizes.value("guidance_embeds", "guidance_embed") else None


def _classes(sizes: DiffusionSizes) -> torch.Tensor | None:
    kind, known = sizes.value("class_embed_type"), sizes.value("num_class_embeds")
    if kind in ("projection", "simple_projection"):
        return sizes.filled(sizes.number("projection_class_embeddings_input_dim", default=1))
    is_trained = known is not None or kind is not None or "num_embeds_ada_norm" in sizes.config
    uses = is_trained and sizes.value("norm_type", default="ada_norm_zero") == "ada_norm_zero"
    return torch.zeros(sizes.batch, dtype=torch.int64) if uses else None


def _conditions(sizes: DiffusionSizes) -> dict[str, Any] | None:
    """SDXL's pooled text and sizes; PixArt's resolution and aspect ratio."""
    if sizes.value("addition_embed_type") == "text_time":
        each = sizes.number("addition_time_embed_dim", default=256)
        width = sizes.number("projection_class_embeddings_input_dim", default=2816)
        return {"text_embeds": sizes.filled(width - 6 * each), "time_ids": sizes.filled(6)}
    if getattr(sizes.model, "use_additional_conditions", False):
        return {"resolution": sizes.filled(2), "aspect_ratio": sizes.filled(1)}
    return {"resolution": None, "aspect_ratio": None} if sizes.name.startswith("PixArt") else None


def _picture_sizes(sizes: DiffusionSizes) -> torch.Tensor:
    return torch.full((sizes.batch, 2), 1024.0).to(sizes.filled().dtype)


def _rotary(sizes: DiffusionSizes) -> Any:
    """Cosines and sines for each patch of a video."""
    if not sizes.value("use_rotary_positional_embeddings"):
        return None
    patch = sizes.number("patch_size", default=2)
    frames, height, width = sizes.latent
    frames = -(-frames // sizes.number("patch_size_t", default=1))
    shape = (frames * (height // patch) * (width // patch), sizes.value("attention_head_dim"))
    return tuple(torch.full(shape, 0.5) for _ in range(2))


def _video(sizes: DiffusionSizes) -> torch.Tensor:
    """Frames before channels."""
    frames, *size = sizes.latent
    return sizes.filled(frames, sizes.num_channels, *size)


def _packed(sizes: DiffusionSizes) -> torch.Tensor:
    return sizes.filled(sizes.grid[0] * sizes.grid[1], sizes.num_channels)


def _picture(sizes: DiffusionSizes) -> tuple[int, ...]:
    """Height and width of a picture of a video."""
    side = sizes.number("sample_size", default=32)
    return side, side


def _sound(sizes: DiffusionSizes) -> tuple[int, ...]:
    return (sizes.number("sample_size", default=1024),)


FACTORIES: dict[str, Factory] = {
    "hidden_states": _latents,
    "sample": _latents,
    "timestep": _times,
    "timesteps": _times,
    "r_timestep": _times,
    "encoder_hidden_states": _texts,
    "encoder_attention_mask": _text_mask,
    "encoder_hidden_states_mask": _text_mask,
    "pooled_projections": _width("pooled_projection_dim", default=768),
    "img_ids": _picture_positions,
    "txt_ids": _text_positions,
    "guidance": _guidance,
    "class_labels": _classes,
    "added_cond_kwargs": _conditions,
    "image_rotary_emb": _rotary,
    "img_shapes": lambda sizes: [[(1, *sizes.grid)]] * sizes.batch,
    "original_size": _picture_sizes,
    "target_size": _picture_sizes,
    "crop_coords": lambda sizes: 0 * _picture_sizes(sizes),
    "conditioning_scale": lambda sizes: 1.0,
    "controlnet_cond": lambda sizes: sizes.filled(
        sizes.number("conditioning_channels", default=3), *(8 * n for n in sizes.latent[-2:])
    ),
}

_ALWAYS = {
    "encoder_hidden_states", "timestep", "timesteps", "pooled_projections", "img_ids", "txt_ids",
    "guidance", "class_labels", "added_cond_kwargs", "image_rotary_emb",
    "encoder_hidden_states_mask", "img_shapes",
}  # fmt: skip
"""Arguments that are made although they have a default, which only some models run with."""

EXCEPTIONS: dict[str, dict[str, Factory]] = {
    "UNet1DModel": {"sample": lambda sizes: sizes.filled(sizes.num_channels, *sizes.latent)},
    "CogVideoX": {"hidden_states": _video},
    "ConsisID": {"hidden_states": _video},
    "AnyFlow": {"hidden_states": _video},
    "LTXVideo": {
        "hidden_states": lambda sizes: sizes.filled(21 * 16 * 22, sizes.num_channels),
        "num_frames": lambda sizes: 21,  # of 161 frames of 512 x 704
        "height": lambda sizes: 16,
        "width": lambda sizes: 22,
    },
    "AutoencoderKLTemporalDecoder": {
        "sample": lambda sizes: sizes.filled(3, *2 * (sizes.number("sample_size", default=256),)),
        "num_frames": lambda sizes: sizes.batch,
    },
    "AutoencoderKLMochi": {"sample": lambda sizes: sizes.filled(3, 7, 256, 256)},
    "AutoencoderKLQwenImage21": {"sample": lambda sizes: sizes.filled(4, 1, 256, 256)},
    "ZImageTransformer": {
        "x": lambda sizes: [t.unsqueeze(1) for t in sizes.filled(sizes.num_channels, 128, 128)],
        "t": _float_times,
        "cap_feats": lambda sizes: [*_texts(sizes)],
    },
    "SD3ControlNet": {"controlnet_cond": _latents},
    "SanaControlNet": {"controlnet_cond": _latents},
    "FluxControlNet": {"controlnet_cond": _packed, "hidden_states": _packed},
    "QwenImageControlNet": {"controlnet_cond": _packed, "hidden_states": _packed},
    "HunyuanImage": {"timestep": _float_times},
    "HunyuanVideo15": {"timestep": _float_times},
    "WanVACE": {
        "control_hidden_states": lambda sizes: sizes.filled(
            sizes.number("vace_in_channels", default=96), *sizes.latent
        )
    },
    "StableAudioDiT": {
        "hidden_states": lambda sizes: sizes.filled(sizes.num_channels, *_sound(sizes)),
        "timestep": _float_times,
        "global_hidden_states": lambda sizes: sizes.filled(
            1, sizes.number("global_states_input_dim", default=1536)
        ),
    },
    "UNetSpatioTemporalCondition": {
        "sample": lambda sizes: sizes.filled(
            25, sizes.num_channels, *(sizes.value("sample_size") or 64,) * 2
        ),
        "encoder_hidden_states": lambda sizes: sizes.filled(1, sizes.text_width),
        "added_time_ids": lambda sizes: sizes.filled(3),
    },
    "UNetMotion": {
        "sample": lambda sizes: sizes.filled(sizes.num_channels, 16, *sizes.latent),
        "encoder_hidden_states": lambda sizes: filled(
            sizes.model, sizes.batch * 16, sizes.seq, sizes.text_width
        ),
    },
    "UNet3DCondition": {
        "sample": lambda sizes: sizes.filled(sizes.num_channels, 16, *_picture(sizes))
    },
    "PriorTransformer": {
        "hidden_states": _width("embedding_dim", default=768),
        "proj_embedding": _width("embedding_proj_dim", "embedding_dim", default=768),
        "encoder_hidden_states": lambda sizes: sizes.filled(
            sizes.seq, sizes.number("embedding_dim", default=768)
        ),
    },
    "Kandinsky3UNet": {"encoder_attention_mask": _text_mask},
    "StableCascadeUNet": {
        "sample": lambda sizes: sizes.filled(sizes.num_channels, 24, 24),
        "timestep_ratio": _float_times,
        "clip_text_pooled": lambda sizes: sizes.filled(
            1, sizes.number("clip_text_pooled_in_channels", default=1280)
        ),
    },
    "T2IAdapter": {
        "x": lambda sizes: sizes.filled(sizes.number("in_channels", default=3), 512, 512)
    },
    "HunyuanDiT2DModel": {
        "text_embedding_mask": lambda sizes: torch.ones(sizes.batch, 77),
        "encoder_hidden_states": lambda sizes: sizes.filled(
            77, sizes.number("cross_attention_dim", default=1024)
        ),
        "encoder_hidden_states_t5": lambda sizes: sizes.filled(
            256, sizes.number("cross_attention_dim_t5", default=2048)
        ),
        "text_embedding_mask_t5": lambda sizes: torch.ones(sizes.batch, 256),
        "image_meta_size": lambda sizes: sizes.filled(6),
        "style": lambda sizes: torch.zeros(sizes.batch, dtype=torch.int64),
        "image_rotary_emb": lambda sizes: None,
    },
}
"""By the beginning of the class's name: arguments with another meaning, or needed though optional.
"""
