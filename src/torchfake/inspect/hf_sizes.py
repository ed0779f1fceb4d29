"""What a transformers model takes, in numbers: from its config, and from its first layer.

Enters: a model, a batch and a length. Leaves: sizes of texts, images and sounds. Invariant: nothing
is made, and nothing is read but configs, signatures and shapes of weights.

A config names one thing in many ways and says it at many places. So a size is looked for under
several names, first in those parts of the config that are about its modality.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import nn

DEFAULT_SEQ = 128
_POSITIONS = (
    "max_position_embeddings", "n_positions", "n_ctx", "max_target_positions", "max_text_positions",
)  # fmt: skip
_IMAGE = ("image_size", "img_size", "max_img_size", "input_size", "crop_size")
_CHANNELS = ("num_channels", "in_channels", "in_chans", "num_input_channels")
_BINS = (
    "feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "n_mels",
    "n_mel_bins", "input_feat_size", "feature_size",
)  # fmt: skip
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PARTS = {
    "text": ("text", "thinker", "decoder", "language"),
    "decoder": ("decoder", "text"),
    "image": ("vision", "image", "visual", "encoder", "backbone"),
    "sound": ("audio", "speech", "encoder", "acoustic"),
}
"""Words in the names of the parts of a config that are about a modality."""


class Sizes:
    """The sizes of a model's inputs, for the batch and length that are asked for."""

    def __init__(self, model: Any, *, batch: int, seq: int | None) -> None:
        self.model = model
        self.config = model.config
        self.batch = batch
        self.has_seq = False  # whether anybody asked for the length
        self._seq = seq
        parameters = inspect.signature(model.forward).parameters.values()
        self.arguments = {p.name: p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
        names = model.main_input_name
        self.main_names = (names,) if isinstance(names, str) else tuple(names)

    # The config.

    @cached_property
    def parts(self) -> list[tuple[str, Any]]:
        """The config and all configs in it by path, from the outside in."""
        found, seen = [("", self.config)], {id(self.config)}
        for path, config in found:
            for key, value in vars(config).items():
                if hasattr(value, "to_diff_dict") and id(value) not in seen:
                    seen.add(id(value))
                    found.append((f"{path}.{key}", value))
        return found

    def find(self, *names: str, of: str = "", default: Any = None) -> Any:
        """The first value under any of `names`, in the parts `of` a modality before the others."""
        words = _PARTS.get(of, ())
        about = [any(word in path for word in words) for path, _ in self.parts]
        order = sorted(range(len(about)), key=lambda i: not about[i])
        for i in order:
            for name in names:
                value = _attribute(self.parts[i][1], name)
                if value is not None and not isinstance(value, bool):
                    return value
        return default

    def number(self, *names: str, of: str = "", default: int) -> int:
        """The same of whole numbers alone; of a list its first."""
        value = self.find(*names, of=of, default=default)
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        return first if isinstance(first, int) else default

    def says(self, name: str) -> bool:
        """Whether any part of the config has a flag set."""
        return any(_attribute(config, name) is True for _, config in self.parts)

    @property
    def kind(self) -> str:
        """The model's type, as transformers names it."""
        return str(_attribute(self.config, "model_type"))

    # The model.

    def takes(self, name: str) -> bool:
        """Whether ``forward`` has such an argument."""
        return name in self.arguments

    def is_a(self, *suffixes: str) -> bool:
        """Whether the class is one of these heads, by the end of its name."""
        return type(self.model).__name__.endswith(suffixes)

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of images and sounds: that of the first floating point parameter."""
        floats = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(floats, torch.float32)

    @cached_property
    def first_layer(self) -> nn.Module | None:
        """The first linear layer or convolution, which most often takes the input as it comes."""
        return next((m for m in self.model.modules() if isinstance(m, _LAYERS)), None)

    # Texts.

    @property
    def seq(self) -> int:
        """Tokens of a text, or frames of a sound."""
        self.has_seq = True
        return self.default_seq if self._seq is None else self._seq

    @cached_property
    def default_seq(self) -> int:
        """As many as the model has positions for, at most 128."""
        shape = _attribute(self.config, "axial_pos_shape")
        if shape is not None and _attribute(self.config, "axial_pos_embds"):
            return math.prod(shape)  # Reformer trains at this length alone
        texts = [config for path, config in self.parts if _is_text(path)]
        limits = [_attribute(config, name) for config in texts for name in _POSITIONS]
        known = [n for n in (*limits, *self._tables()) if isinstance(n, int) and n > 0]
        return min([DEFAULT_SEQ, *known])

    def _tables(self) -> Iterator[int]:
        """How many positions there are where they are counted from behind that of padding."""
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Embedding) and "position" in name.rpartition(".")[2]:
                if module.padding_idx is not None:
                    yield module.num_embeddings - module.padding_idx - 1

    @property
    def text(self) -> tuple[int, ...]:
        """The shape of a text; heads that choose take two of each."""
        choices = (2,) if self.is_a("ForMultipleChoice", "DoubleHeadsModel") else ()
        return (self.batch, *choices, self.seq)

    @cached_property
    def vocabulary(self) -> int:
        """The smallest there is: a token of it is in all."""
        sizes = (_attribute(config, "vocab_size") for _, config in self.parts)
        return min((n for n in sizes if isinstance(n, int) and n > 0), default=2)

    @cached_property
    def token(self) -> int:
        """The first that has no meaning of its own, as those of padding and images do."""
        special = [value for _, c in self.parts for key, value in vars(c).items() if "token" in key]
        taken = [v for s in special for v in (s if isinstance(s, (list, tuple)) else (s,))]
        return next((n for n in range(3, self.vocabulary) if n not in taken), 0)

    @cached_property
    def last_token(self) -> int:
        """The one that ends a text, which heads of encoder-decoders look for."""
        found = self.number("eos_token_id", of="text", default=self.token)
        return found if 0 <= found < self.vocabulary else self.token

    # Images.

    @cached_property
    def image(self) -> tuple[int, int]:
        """Height and width."""
        ratios = self.find("scaled_images_ratios")
        if ratios:  # the smallest copy of the image is still one patch
            side = round(self.number("patch_size", default=16) / min(ratios))
            return side, side
        height, width = _pair(self.find(*_IMAGE, of="image", default=224))
        unit = max(self.patch) * self.number("num_windows", of="image", default=1)
        fits = self.find("num_windows_side") or height < unit or width < unit
        return (height, width) if fits else (height // unit * unit, width // unit * unit)

    @cached_property
    def patch(self) -> tuple[int, int]:
        """Height and width."""
        return _pair(self.find("patch_size", of="image", default=16))

    @cached_property
    def channels(self) -> int:
        """Of an image."""
        return self.number(*_CHANNELS, of="image", default=3)

    @cached_property
    def is_film(self) -> bool:
        """Whether ``pixel_values`` are several images each."""
        takes = self.model.input_modalities
        only = "video" in takes and "image" not in takes
        return only or isinstance(self.find("num_frames"), int)

    @cached_property
    def frames(self) -> int:
        """Of a film."""
        return self.number("num_frames", "frames_per_clip", of="image", default=4)

    @cached_property
    def merge(self) -> int:
        """How many patches become one, along each side."""
        names = ("spatial_merge_size", "merge_size", "merge_kernel_size")
        return self.number(*names, of="image", default=2)

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of an image's patches, where these are the input; they can be merged."""
        unit = self.merge * self.number("window_kernel_size", "pooling_kernel_size", default=2)
        rows, columns = (math.ceil(n / p) for n, p in zip(self.image, self.patch, strict=True))
        return math.ceil(rows / unit) * unit, math.ceil(columns / unit) * unit

    @property
    def patches(self) -> int:
        """How many patches an image has."""
        return math.prod(self.grid)

    @property
    def patch_values(self) -> int:
        """Numbers in one patch: what the first layer makes one position of."""
        layer: Any = self.first_layer
        return self.channels * math.prod(self.patch) if layer is None else layer.weight[0].numel()

    # Sounds.

    @property
    def samples(self) -> int:
        """Of a waveform with as many frames as are asked for."""
        strides = self.find("conv_stride", of="sound")
        kernels = self.find("conv_kernel", of="sound")
        if not isinstance(strides, (list, tuple)) or not isinstance(kernels, (list, tuple)):
            return self.seq * self.samples_per_frame
        count = self.seq
        for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
            count = (count - 1) * stride + kernel
        return count

    @cached_property
    def samples_per_frame(self) -> int:
        """Of a codec."""
        hop = self.find("samples_per_token", "hop_length", "frame_size", of="sound")
        ratios = self.find("downsampling_ratios", "upsampling_ratios", of="sound")
        return hop if isinstance(hop, int) else math.prod(ratios) if ratios else 640

    @cached_property
    def bins(self) -> int:
        """Numbers in a frame of a spectrogram."""
        layer = self.first_layer
        if isinstance(layer, nn.Linear) and not self.takes("input_ids") and not self._stacks:
            return layer.in_features  # of several frames, where the model takes them so
        return self.number(*_BINS, of="sound", default=80)

    @property
    def _stacks(self) -> bool:
        """Whether the model puts several frames into one itself."""
        convolves = any(isinstance(module, nn.Conv2d) for module in self.model.modules())
        return convolves or self.find("subsampling_factor") is not None

    @cached_property
    def is_bins_first(self) -> bool:
        """Whether a spectrogram begins with its bins: where the first layer goes over time."""
        layer = self.first_layer
        return isinstance(layer, nn.Conv1d) and layer.in_channels == self.bins

    @property
    def spectrum(self) -> int:
        """Frames of a spectrogram; some models leave no choice."""
        fixed = self.number("max_source_positions", of="sound", default=0)
        if fixed and self.is_bins_first:
            return 2 * fixed  # a convolution that halves them follows
        window = 2 * self.number("n_window", of="sound", default=0)
        return math.ceil(self.seq / window) * window if window else self.seq


def _attribute(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # some configs refuse to name what differs between layers
        return None


def _is_text(path: str) -> bool:
    last = path.rpartition(".")[2]
    return not last or any(word in last for word in ("text", "encoder", "decoder", "thinker"))


def _pair(size: Any) -> tuple[int, int]:
    """Height and width, however a config says them."""
    if isinstance(size, dict):
        sides = [size[key] for key in ("height", "width") if key in size] or list(size.values())
    else:
        sides = list(size) if isinstance(size, (list, tuple)) else [size]
    return int(sides[-2 % len(sides)]), int(sides[-1])
