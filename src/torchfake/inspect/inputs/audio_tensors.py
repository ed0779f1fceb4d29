"""Tensors of sounds and of other values over time: waveforms, spectrograms, time series.

Input: sizes. Output: floating point tensors of one value, and masks. Invariant: the lengths give
the requested number of frames.
"""

from __future__ import annotations

import math

import torch

from torchfake.inspect.inputs.constant_tensors import Factory, constant_floats, readable_ones
from torchfake.inspect.inputs.sizes import Sizes


def waveform(sizes: Sizes) -> torch.Tensor:
    """A waveform, with a dimension for channels if the model is a codec."""
    paths = [path for path, config in sizes.configs if "conv_stride" in vars(config)]
    has_no_channels = any("semantic" not in path for path in paths)
    return constant_floats(sizes, *(() if has_no_channels else (1,)), sizes.num_samples)


def mono_waveform(sizes: Sizes) -> torch.Tensor:
    """A waveform without a dimension for channels."""
    return constant_floats(sizes, sizes.num_samples)


def speecht5_input(sizes: Sizes) -> torch.Tensor:
    """A waveform; for SpeechT5Model, which begins with the encoder, the encoder's input."""
    if sizes.class_ends_with("SpeechT5Model"):
        return constant_floats(sizes, sizes.seq, sizes.config_int("hidden_size", default=1))
    return constant_floats(sizes, sizes.num_samples)


def speecht5_decoder_input(sizes: Sizes) -> torch.Tensor:
    """A spectrogram; for SpeechT5Model, the decoder's input."""
    width = "hidden_size" if sizes.class_ends_with("SpeechT5Model") else "num_mel_bins"
    return constant_floats(sizes, sizes.seq, sizes.config_int(width, default=1))


def spectrogram(sizes: Sizes) -> torch.Tensor:
    """A spectrogram: frames by bins, or bins by frames if a convolution over time takes it."""
    if sizes.is_bins_first:
        return spectrogram_bins_first(sizes)
    return constant_floats(sizes, sizes.num_spectrogram_frames, sizes.num_bins)


def spectrogram_bins_first(sizes: Sizes) -> torch.Tensor:
    """A spectrogram, bins by frames."""
    return constant_floats(sizes, sizes.num_bins, sizes.num_spectrogram_frames)


def spectrogram_mask(sizes: Sizes) -> torch.Tensor | None:
    """A mask of ones for a spectrogram."""
    return readable_ones(sizes.batch, sizes.num_spectrogram_frames)


def time_series(sizes: Sizes) -> torch.Tensor:
    """A time series of several channels."""
    length = sizes.config_int("context_length", default=sizes.seq)
    return constant_floats(sizes, length, sizes.num_channels)


def patched_time_series(*, dtype: torch.dtype | None = None) -> Factory:
    """A factory of time series of zeros, whose length is a multiple of the patch length."""

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
