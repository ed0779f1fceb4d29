"""Tensors of sound and of other values over time: waveforms, spectrograms, time series.

Input: sizes. Output: floating point tensors of one value, and masks. Invariant: lengths are those
that give as many frames as were requested.
"""

from __future__ import annotations

import math

import torch

from torchfake.inspect.inputs.constant_tensors import Factory, constant_floats, readable_ones
from torchfake.inspect.inputs.sizes import Sizes


def waveform(sizes: Sizes) -> torch.Tensor:
    """Samples; with a dimension for channels, as codecs take them."""
    paths = [path for path, config in sizes.configs if "conv_stride" in vars(config)]
    has_no_channels = any("semantic" not in path for path in paths)
    return constant_floats(sizes, *(() if has_no_channels else (1,)), sizes.num_samples)


def mono_waveform(sizes: Sizes) -> torch.Tensor:
    """Samples without a dimension for channels."""
    return constant_floats(sizes, sizes.num_samples)


def speecht5_input(sizes: Sizes) -> torch.Tensor:
    """Samples; for SpeechT5Model, which has no layers before the encoder, their output."""
    if sizes.class_ends_with("SpeechT5Model"):
        return constant_floats(sizes, sizes.seq, sizes.config_int("hidden_size", default=1))
    return constant_floats(sizes, sizes.num_samples)


def speecht5_decoder_input(sizes: Sizes) -> torch.Tensor:
    """A spectrogram; for SpeechT5Model, the output of the layers before the decoder."""
    width = "hidden_size" if sizes.class_ends_with("SpeechT5Model") else "num_mel_bins"
    return constant_floats(sizes, sizes.seq, sizes.config_int(width, default=1))


def spectrogram(sizes: Sizes) -> torch.Tensor:
    """Frames by bins; bins by frames where the first layer is a convolution over time."""
    if sizes.is_bins_first:
        return spectrogram_bins_first(sizes)
    return constant_floats(sizes, sizes.num_spectrogram_frames, sizes.num_bins)


def spectrogram_bins_first(sizes: Sizes) -> torch.Tensor:
    """Bins by frames."""
    return constant_floats(sizes, sizes.num_bins, sizes.num_spectrogram_frames)


def spectrogram_mask(sizes: Sizes) -> torch.Tensor | None:
    """A mask of a spectrogram of which nothing is masked."""
    return readable_ones(sizes.batch, sizes.num_spectrogram_frames)


def time_series(sizes: Sizes) -> torch.Tensor:
    """Values over time, of several channels."""
    length = sizes.config_int("context_length", default=sizes.seq)
    return constant_floats(sizes, length, sizes.num_channels)


def patched_time_series(*, dtype: torch.dtype | None = None) -> Factory:
    """A factory of zeros over time, as many as fill whole patches."""

    def make(sizes: Sizes) -> torch.Tensor:
        length = sizes.config_int("patch_length", default=1)
        shape = (sizes.batch, math.ceil(sizes.seq / length) * length)
        return torch.zeros(shape, dtype=dtype or sizes.dtype)

    return make


def perceiver_input(sizes: Sizes) -> torch.Tensor | None:
    """Perceiver's array of inputs; None for models that take a text or an image instead."""
    if sizes.has_argument("input_ids") or sizes.has_argument("pixel_values"):
        return None
    return constant_floats(sizes, sizes.seq, sizes.config_int("d_model", default=1))
