"""Sizes of the inputs of a transformers model, from its config and from its first layer.

Input: a model, a batch size and a sequence length. Output: sizes of texts, images and sounds.
Invariant: no tensor is created; only configs, signatures and shapes of weights are read.

Configs have many names for one size, in several nested configs. So a size is looked up under
several keys, first in the nested configs of its modality.
"""

from __future__ import annotations

import inspect
import math
from functools import cached_property
from typing import Any

import torch
from torch import nn

from torchfake.inspect.contents.positions import table_sizes

DEFAULT_SEQ = 128
_POSITION_KEYS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_target_positions", "max_text_positions",
)  # fmt: skip
_IMAGE_SIZE_KEYS = ("image_size", "img_size", "max_img_size", "input_size", "crop_size")
_CHANNEL_KEYS = ("num_channels", "in_channels", "in_chans", "num_input_channels")
_BIN_KEYS = (
    "feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "n_mels",
    "n_mel_bins", "input_feat_size", "feature_size",
)  # fmt: skip
_LAYER_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CONFIGS_OF = {
    "text": ("text", "thinker", "decoder", "language"),
    "decoder": ("decoder", "text"),
    "image": ("vision", "image", "visual", "encoder", "backbone"),
    "sound": ("audio", "speech", "encoder", "acoustic"),
}
"""Parts of the names of nested configs, by modality."""


class Sizes:
    """The sizes of a model's inputs, for a batch size and a sequence length."""

    def __init__(self, model: Any, *, batch: int, seq: int | None) -> None:
        self.model = model
        self.config = model.config
        self.batch = batch
        self.uses_seq = False  # whether any size was computed from the sequence length
        self._seq = seq
        parameters = inspect.signature(model.forward).parameters.values()
        self.arguments = {p.name: p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
        names = model.main_input_name
        self.main_names = (names,) if isinstance(names, str) else tuple(names)

    # Config values.

    @cached_property
    def configs(self) -> list[tuple[str, Any]]:
        """The config and all nested configs with their paths, outer ones first."""
        found, seen = [("", self.config)], {id(self.config)}
        for path, config in found:
            for key, value in vars(config).items():
                if hasattr(value, "to_diff_dict") and id(value) not in seen:
                    seen.add(id(value))
                    found.append((f"{path}.{key}", value))
        return found

    def config_value(self, *keys: str, of: str = "", default: Any = None) -> Any:
        """The first value under any of `keys`; configs of the modality `of` are searched first."""
        words = _CONFIGS_OF.get(of, ())
        is_of = [any(word in path for word in words) for path, _ in self.configs]
        for i in sorted(range(len(is_of)), key=lambda i: not is_of[i]):
            for key in keys:
                value = _attribute(self.configs[i][1], key)
                if value is not None and not isinstance(value, bool):
                    return value
        return default

    def config_int(self, *keys: str, of: str = "", default: int) -> int:
        """The value of :meth:`config_value` as an integer; of a list, its first item."""
        value = self.config_value(*keys, of=of, default=default)
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        return first if isinstance(first, int) else default

    def config_flag(self, key: str) -> bool:
        """Whether a flag is set in any of the configs."""
        return any(_attribute(config, key) is True for _, config in self.configs)

    @property
    def model_type(self) -> str:
        """The model's type: transformers' `model_type`."""
        return str(_attribute(self.config, "model_type"))

    # Properties of the model.

    def has_argument(self, name: str) -> bool:
        """Whether ``forward`` has an argument of this name."""
        return name in self.arguments

    def class_ends_with(self, *suffixes: str) -> bool:
        """Whether the name of the model's class ends with one of `suffixes`, such as "ForCTC"."""
        return type(self.model).__name__.endswith(suffixes)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of images and sounds: that of the first floating point parameter."""
        floats = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(floats, torch.float32)

    @cached_property
    def first_layer(self) -> nn.Module | None:
        """The first linear layer or convolution, which usually takes the model's input."""
        return next((m for m in self.model.modules() if isinstance(m, _LAYER_TYPES)), None)

    # Texts.

    @property
    def seq(self) -> int:
        """The sequence length: tokens of a text, or frames of a sound."""
        self.uses_seq = True
        return self.default_seq if self._seq is None else self._seq

    @cached_property
    def default_seq(self) -> int:
        """As many tokens as the model has positions for, at most 128."""
        shape = _attribute(self.config, "axial_pos_shape")
        if shape is not None and _attribute(self.config, "axial_pos_embds"):
            return math.prod(shape)  # Reformer can be trained at this length only
        texts = [config for path, config in self.configs if _is_text_config(path)]
        limits = [_attribute(config, name) for config in texts for name in _POSITION_KEYS]
        known = [n for n in (*limits, *table_sizes(self.model)) if isinstance(n, int) and n > 0]
        return min([DEFAULT_SEQ, *known])

    @property
    def text_shape(self) -> tuple[int, ...]:
        """The shape of token ids; heads for multiple choice take two texts per example."""
        choices = (2,) if self.class_ends_with("ForMultipleChoice", "DoubleHeadsModel") else ()
        return (self.batch, *choices, self.seq)

    @cached_property
    def vocab_size(self) -> int:
        """The smallest vocabulary of all configs, whose tokens are valid in all of them."""
        sizes = (_attribute(config, "vocab_size") for _, config in self.configs)
        return min((n for n in sizes if isinstance(n, int) and n > 0), default=2)

    @cached_property
    def plain_token(self) -> int:
        """The first token without a special meaning, such as padding or an image's placeholder."""
        special = [
            value for _, c in self.configs for key, value in vars(c).items() if "token" in key
        ]
        taken = [v for s in special for v in (s if isinstance(s, (list, tuple)) else (s,))]
        return next((n for n in range(3, self.vocab_size) if n not in taken), 0)

    @cached_property
    def end_token(self) -> int:
        """The end-of-text token, which heads of encoder-decoders look for."""
        found = self.config_int("eos_token_id", of="text", default=self.plain_token)
        return found if 0 <= found < self.vocab_size else self.plain_token

    # Images.

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width of an image."""
        ratios = self.config_value("scaled_images_ratios")
        if ratios:  # the smallest copy of the image is still one patch
            side = round(self.config_int("patch_size", default=16) / min(ratios))
            return side, side
        height, width = _pair(self.config_value(*_IMAGE_SIZE_KEYS, of="image", default=224))
        unit = max(self.patch_size) * self.config_int("num_windows", of="image", default=1)
        fits = self.config_value("num_windows_side") or height < unit or width < unit
        return (height, width) if fits else (height // unit * unit, width // unit * unit)

    @cached_property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return _pair(self.config_value("patch_size", of="image", default=16))

    @cached_property
    def num_channels(self) -> int:
        """Channels of an image."""
        return self.config_int(*_CHANNEL_KEYS, of="image", default=3)

    @cached_property
    def is_video(self) -> bool:
        """Whether ``pixel_values`` are videos."""
        modalities = self.model.input_modalities
        only_video = "video" in modalities and "image" not in modalities
        return only_video or isinstance(self.config_value("num_frames"), int)

    @cached_property
    def num_frames(self) -> int:
        """Frames of a video."""
        return self.config_int("num_frames", "frames_per_clip", of="image", default=4)

    @cached_property
    def merge_size(self) -> int:
        """The number of patches that are merged into one along each side."""
        names = ("spatial_merge_size", "merge_size", "merge_kernel_size")
        return self.config_int(*names, of="image", default=2)

    @cached_property
    def patch_grid(self) -> tuple[int, int]:
        """Rows and columns of patches, for models that take patches; multiples of merged sizes."""
        unit = self.merge_size * self.config_int(
            "window_kernel_size", "pooling_kernel_size", default=2
        )
        rows, columns = (
            math.ceil(n / p) for n, p in zip(self.image_size, self.patch_size, strict=True)
        )
        return math.ceil(rows / unit) * unit, math.ceil(columns / unit) * unit

    @property
    def num_patches(self) -> int:
        """The number of patches of an image."""
        return math.prod(self.patch_grid)

    @property
    def values_per_patch(self) -> int:
        """The number of values in a patch, which is the input of the first layer per position."""
        layer: Any = self.first_layer
        return (
            self.num_channels * math.prod(self.patch_size)
            if layer is None
            else layer.weight[0].numel()
        )

    # Sounds.

    @property
    def num_samples(self) -> int:
        """Samples of a waveform that gives as many frames as the sequence length."""
        strides = self.config_value("conv_stride", of="sound")
        kernels = self.config_value("conv_kernel", of="sound")
        if not isinstance(strides, (list, tuple)) or not isinstance(kernels, (list, tuple)):
            return self.seq * self.samples_per_frame
        count = self.seq
        for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
            count = (count - 1) * stride + kernel
        return count

    @cached_property
    def samples_per_frame(self) -> int:
        """Samples per frame of a codec."""
        hop = self.config_value("samples_per_token", "hop_length", "frame_size", of="sound")
        ratios = self.config_value("downsampling_ratios", "upsampling_ratios", of="sound")
        return hop if isinstance(hop, int) else math.prod(ratios) if ratios else 640

    @cached_property
    def num_bins(self) -> int:
        """Values in a frame of a spectrogram."""
        layer = self.first_layer
        if (
            isinstance(layer, nn.Linear)
            and not self.has_argument("input_ids")
            and not self._stacks_frames
        ):
            return layer.in_features  # perhaps those of several frames
        return self.config_int(*_BIN_KEYS, of="sound", default=80)

    @property
    def _stacks_frames(self) -> bool:
        """Whether the model itself merges several frames into one."""
        convolves = any(isinstance(module, nn.Conv2d) for module in self.model.modules())
        return convolves or self.config_value("subsampling_factor") is not None

    @cached_property
    def is_bins_first(self) -> bool:
        """Whether bins come before frames in a spectrogram, as a convolution over time takes it."""
        layer = self.first_layer
        return isinstance(layer, nn.Conv1d) and layer.in_channels == self.num_bins

    @property
    def num_spectrogram_frames(self) -> int:
        """Frames of a spectrogram; some models take a fixed number."""
        fixed = self.config_int("max_source_positions", of="sound", default=0)
        if fixed and self.is_bins_first:
            return 2 * fixed  # a convolution halves the number
        window = 2 * self.config_int("n_window", of="sound", default=0)
        return math.ceil(self.seq / window) * window if window else self.seq


def _attribute(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # some configs raise for attributes that differ between layers
        return None


def _is_text_config(path: str) -> bool:
    last = path.rpartition(".")[2]
    return not last or any(word in last for word in ("text", "encoder", "decoder", "thinker"))


def _pair(size: Any) -> tuple[int, int]:
    """Height and width from a size in any form that configs use."""
    if isinstance(size, dict):
        sides = [size[key] for key in ("height", "width") if key in size] or list(size.values())
    else:
        sides = list(size) if isinstance(size, (list, tuple)) else [size]
    return int(sides[-2 % len(sides)]), int(sides[-1])
