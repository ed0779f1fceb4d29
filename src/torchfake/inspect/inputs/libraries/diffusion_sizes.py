"""Sizes of the latents and texts of a model of diffusers, from its config.

Input: a model, a batch size, a number of text tokens. Output: sizes. Invariant: a size that the
config leaves open is the default of the pipeline that the model was published with.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from torchfake.inspect.inputs.libraries.pictures import filled

_TEXT_WIDTHS = (
    "joint_attention_dim", "encoder_hid_dim", "caption_channels", "cross_attention_dim", "text_dim",
    "text_embed_dim", "cap_feat_dim", "text_feature_dim", "context_in_dim", "in_text_dim",
    "cross_attention_input_dim", "caption_dim", "text_in_dim", "text_hidden_size",
    "text_states_dim", "encoder_hidden_size", "text_embedding_dim", "clip_embed_dim",
)  # fmt: skip
_CHANNELS = ("in_channels", "in_visual_dim", "latent_channels", "in_dim", "image_in_channels")

_LATENTS = {"1D": (256,), "3D": (21, 60, 104), "": (64, 64)}
"""Latents that no config names: one second of sound, Wan's 81 frames of 480 x 832, a picture of 512
x 512 of Stable Diffusion."""

_TEXT_LENGTHS = {
    "Flux": 512, "SD3": 333, "Wan": 512, "SkyReels": 512, "UNet2DCondition": 77, "UNet3D": 77,
    "UNetMotion": 77, "ControlNetModel": 77, "CogView3": 224, "CogView4": 224, "PixArt": 120,
    "Sana": 300, "LTX": 128, "Hunyuan": 256, "Mochi": 256, "Lumina": 256, "AuraFlow": 256,
    "Allegro": 512, "Kandinsky3": 128, "Latte": 120, "StableAudio": 130, "Prior": 77,
}  # fmt: skip
"""Tokens of a text in the pipelines, by the beginning of the class's name."""

_DEFAULT_LENGTH = 256


class DiffusionSizes:
    """The sizes of a model's inputs."""

    def __init__(self, model: Any, *, batch: int, seq: int | None) -> None:
        self.model, self.config, self.batch = model, model.config, batch
        self.name = type(model).__name__
        self.uses_seq = False  # whether any size was computed from the number of text tokens
        self._seq = seq
        self.arguments = inspect.signature(model.forward).parameters

    def value(self, *keys: str, default: Any = None) -> Any:
        """The first value in the config under any of `keys`."""
        for key in keys:
            found = self.config.get(key)
            if found is not None:
                return found
        return default

    def number(self, *keys: str, default: int) -> int:
        """The value of :meth:`value` as an integer; of a list, its first item."""
        found = self.value(*keys, default=default)
        first = found[0] if isinstance(found, (list, tuple)) and found else found
        return first if isinstance(first, int) and not isinstance(first, bool) else default

    def filled(self, *shape: int) -> torch.Tensor:
        """A tensor of one value for each sample, in the model's dtype."""
        return filled(self.model, self.batch, *shape)

    # Latents.

    @property
    def num_channels(self) -> int:
        """Channels of a latent."""
        return self.number(*_CHANNELS, default=4)

    @property
    def is_packed(self) -> bool:
        """Whether latents are rows of patches, each with its position in the picture."""
        return bool({"img_ids", "img_shapes", "video_coords"} & self.arguments.keys())

    @property
    def num_dims(self) -> int:
        """1 for sounds, 2 for pictures, 3 for videos."""
        return next((n for n in (1, 3) if f"{n}D" in self.name), 2)

    @property
    def latent(self) -> tuple[int, ...]:
        """The size of a latent: length; height and width; or frames, height and width."""
        sides = self.value("sample_size", "input_size", "image_size")
        default = next(size for key, size in _LATENTS.items() if key in self.name)
        if self.num_dims == 3:
            height = self.value("sample_height", default=None)
            if height is None and not isinstance(sides, int):
                return default
            height = height or sides
            return self._frames, height, self.value("sample_width", default=height)
        if sides is None:
            return default
        if self.num_dims == 1:
            return (sides,) if isinstance(sides, int) else tuple(sides[-1:])
        return (sides, sides) if isinstance(sides, int) else tuple(sides[-2:])

    @property
    def _frames(self) -> int:
        frames = self.number("sample_frames", "num_frames", default=81)
        ratio = self.number("temporal_compression_ratio", default=0)
        return (frames - 1) // ratio + 1 if ratio else frames

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of packed patches: those of a picture of 1024 x 1024."""
        return 64, 64

    # Texts.

    @property
    def seq(self) -> int:
        """Tokens of a text."""
        self.uses_seq = True
        return self.default_seq if self._seq is None else self._seq

    @property
    def default_seq(self) -> int:
        """As many tokens as the pipeline pads its texts to."""
        fixed = self.value("max_text_seq_length", "text_len", "num_embeddings")
        if isinstance(fixed, int):
            return fixed
        lengths = (n for key, n in _TEXT_LENGTHS.items() if self.name.startswith(key))
        return next(lengths, _DEFAULT_LENGTH)

    @property
    def text_width(self) -> int:
        """Values of the embedding of a token."""
        return self.number(*_TEXT_WIDTHS, default=768)


def is_denoiser(model: Any) -> bool:
    """Whether a model of diffusers is what a pipeline runs once in each of its steps."""
    name = type(model).__name__
    if "ControlNet" in name or "Prior" in name or is_autoencoder(model):
        return False
    arguments = inspect.signature(model.forward).parameters
    return any(argument == "t" or argument.startswith("timestep") for argument in arguments)


def is_autoencoder(model: nn.Module) -> bool:
    """Whether a model encodes pictures, videos or sounds, and decodes them."""
    return hasattr(model, "decode") or type(model).__module__.split(".")[2:3] == ["autoencoders"]
