"""Tensors for a transformers model: texts, images, films and sounds of given sizes.

Enters: sizes. Leaves: tensors, made by whatever mode is on. Invariant: what models branch on
(tokens, masks, grids) is made from host data, so that a fake of it has values where it is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchfake._values import fits
from torchfake.errors import InputsError
from torchfake.inspect.hf_sizes import Sizes

Maker = Callable[[Sizes], Any]
INT, FLAG = torch.int64, torch.bool

# Texts.


def tokens(sizes: Sizes) -> torch.Tensor:
    """One plain token throughout, and at the end the one that ends a text."""
    ids = torch.full(sizes.text, sizes.token)
    ids[..., -1] = sizes.last_token
    return ids


def tokens_behind_image(sizes: Sizes) -> torch.Tensor:
    """The same behind as many marks as an image takes.

    Raises:
        InputsError: if the text is too short for that.
    """
    ids, num, mark = tokens(sizes), sizes.number("num_query_tokens", default=0), _mark(sizes)
    if mark is not None:
        _check_room(sizes, num)
        ids[:, :num] = mark
    return ids


def _mark(sizes: Sizes) -> int | None:
    found = sizes.find("image_token_id", "image_token_index")
    return found if isinstance(found, int) else None


def _check_room(sizes: Sizes, num: int) -> None:
    if sizes.seq <= num:
        raise InputsError(
            f"an image takes {num} tokens of {type(sizes.model).__name__}'s text: seq must be "
            f"{num + 1} or more, and is {sizes.seq}"
        )


def image_places(sizes: Sizes) -> torch.Tensor:
    """Which tokens of a text an image takes: the first.

    Raises:
        InputsError: if the text is too short for that.
    """
    num = sizes.number("latent_query_num", default=1)
    _check_room(sizes, num)
    return (torch.arange(sizes.seq) < num).to(INT).repeat(sizes.batch, 1)


def mask(sizes: Sizes) -> torch.Tensor | None:
    """Nothing is masked."""
    return known_ones(*sizes.text)


def known_ones(*shape: int) -> torch.Tensor | None:
    """Ones that a model can read, for models ask whether anything is masked.

    Where they are more than a fake remembers, all rows are one row in memory. Where even what a
    model makes of that is too much, there are none: without a mask, models do not ask.
    """
    count = math.prod(shape)
    if fits(count * INT.itemsize, INT):
        return torch.ones(shape, dtype=INT)
    if fits(count, FLAG) and fits(shape[-1] * INT.itemsize, INT):
        return torch.ones(shape[-1], dtype=INT).expand(shape)
    return None


def codes(name: str, *, more: int = 0) -> Maker:
    """Several tokens at each position: as many as a config says under `name`, and `more`."""

    def make(sizes: Sizes) -> torch.Tensor:
        num = sizes.number(name, of="decoder", default=1) + more
        return torch.full((sizes.batch, sizes.seq, num), sizes.token)

    return make


def code_rows(sizes: Sizes) -> torch.Tensor:
    """Tokens of sound, the codebooks of one example one after another in the batch."""
    rows = sizes.batch * sizes.number("num_codebooks", of="decoder", default=1)
    return torch.full((rows, sizes.seq), sizes.token)


def positions(sizes: Sizes) -> torch.Tensor:
    """Counted from 0."""
    return torch.arange(sizes.seq).repeat(sizes.batch, 1)


# Images and films.


def numbers(sizes: Sizes, *shape: int) -> torch.Tensor:
    """Pixels or samples: all alike, and not 0, which is how some models know padding."""
    return torch.full((sizes.batch, *shape), 0.5, dtype=sizes.dtype)


def images(sizes: Sizes) -> torch.Tensor:
    """Images, films or patches, whatever ``pixel_values`` are here."""
    if sizes.takes("grid_thw"):
        return patches(sizes)
    if sizes.takes("spatial_shapes") or sizes.takes("pixel_position_ids"):
        return numbers(sizes, sizes.patches, sizes.channels * math.prod(sizes.patch))
    return films(sizes) if sizes.is_film else numbers(sizes, sizes.channels, *sizes.image)


def films(sizes: Sizes) -> torch.Tensor:
    """Several images each."""
    return numbers(sizes, sizes.frames, sizes.channels, *sizes.image)


def pairs(sizes: Sizes) -> torch.Tensor:
    """Two images each, to be matched."""
    return numbers(sizes, 2, sizes.channels, *sizes.image)


def halves(sizes: Sizes) -> torch.Tensor:
    """Images that the model puts on top of others."""
    height, width = sizes.image
    return numbers(sizes, sizes.channels, height // 2, width)


def flat_patches(sizes: Sizes) -> torch.Tensor:
    """Patches of each image, each behind its row and column."""
    return numbers(sizes, sizes.patches, 2 + sizes.patch_values)


def patches(sizes: Sizes) -> torch.Tensor:
    """The patches of all images, one after another."""
    shape = (sizes.batch * sizes.patches, sizes.patch_values)
    return torch.full(shape, 0.5, dtype=sizes.dtype)


def patch_mask(sizes: Sizes) -> torch.Tensor | None:
    """All patches are there."""
    return known_ones(sizes.batch, sizes.patches)


def square_patches(sizes: Sizes) -> torch.Tensor:
    """The same, each still a small image."""
    return patches(sizes).view(-1, sizes.channels, *sizes.patch)


def patches_in_line(sizes: Sizes) -> torch.Tensor:
    """All patches side by side, as one low image."""
    height, width = sizes.patch
    shape = (1, sizes.channels, height, sizes.batch * sizes.patches * width)
    return torch.full(shape, 0.5, dtype=sizes.dtype)


def merged_patches(sizes: Sizes) -> torch.Tensor:
    """Patches that are merged already, channels last."""
    side = sizes.patch[0] * sizes.merge
    shape = (sizes.batch * sizes.patches // sizes.merge**2, side, side, sizes.channels)
    return torch.full(shape, 0.5, dtype=sizes.dtype)


def merged_grids(sizes: Sizes) -> torch.Tensor:
    """Their frames, rows and columns."""
    rows, columns = sizes.grid
    return torch.tensor([[1, rows // sizes.merge, columns // sizes.merge]] * sizes.batch)


def grids(sizes: Sizes) -> torch.Tensor:
    """For each image: frames, rows and columns of patches."""
    return torch.tensor([[1, *sizes.grid]] * sizes.batch)


def shapes(sizes: Sizes) -> torch.Tensor:
    """For each image: rows and columns of patches."""
    return torch.tensor([sizes.grid] * sizes.batch)


def places(sizes: Sizes) -> torch.Tensor:
    """The column and row of each patch."""
    rows, columns = sizes.grid
    index = torch.arange(rows * columns)
    return torch.stack([index % columns, index // columns], -1).repeat(sizes.batch, 1, 1)


def masked_patches(sizes: Sizes) -> torch.Tensor:
    """Which patches a model is to make up: every other one, equally many in each image or film."""
    (height, width), (rows, columns) = sizes.image, sizes.patch
    num = (height // rows) * (width // columns)
    if sizes.is_film:
        num *= sizes.frames // sizes.number("tubelet_size", default=1)
    return (torch.arange(num) % 2 == 0).repeat(sizes.batch, 1)


# Sounds, and values over time.


def waveform(sizes: Sizes) -> torch.Tensor:
    """Samples; codecs take them with a dimension for channels."""
    speech = [path for path, config in sizes.parts if "conv_stride" in vars(config)]
    is_flat = any("semantic" not in path for path in speech)
    return numbers(sizes, *(() if is_flat else (1,)), sizes.samples)


def speech(sizes: Sizes) -> torch.Tensor:
    """Samples, or what SpeechT5's layers before the encoder make of them, where it has none."""
    if sizes.is_a("SpeechT5Model"):
        return numbers(sizes, sizes.seq, sizes.number("hidden_size", default=1))
    return numbers(sizes, sizes.samples)


def mels_behind(sizes: Sizes) -> torch.Tensor:
    """What SpeechT5's decoder goes on from: a spectrogram, or what its first layers make of it."""
    width = "hidden_size" if sizes.is_a("SpeechT5Model") else "num_mel_bins"
    return numbers(sizes, sizes.seq, sizes.number(width, default=1))


def samples(sizes: Sizes) -> torch.Tensor:
    """Samples without a dimension for channels."""
    return numbers(sizes, sizes.samples)


def spectrogram(sizes: Sizes) -> torch.Tensor:
    """Frames by bins, or bins by frames where the first layer goes over time."""
    shape = (sizes.spectrum, sizes.bins)
    return numbers(sizes, *(reversed(shape) if sizes.is_bins_first else shape))


def spectrogram_mask(sizes: Sizes) -> torch.Tensor | None:
    """All frames are there."""
    return known_ones(sizes.batch, sizes.spectrum)


def series(sizes: Sizes) -> torch.Tensor:
    """Values over time, of several channels."""
    return numbers(sizes, sizes.number("context_length", default=sizes.seq), sizes.channels)


def steps(*, dtype: torch.dtype | None = None) -> Maker:
    """Values over time, which go into whole patches; of a given dtype 0."""

    def make(sizes: Sizes) -> torch.Tensor:
        length = sizes.number("patch_length", default=1)
        shape = (sizes.batch, math.ceil(sizes.seq / length) * length)
        return torch.zeros(shape, dtype=dtype or sizes.dtype)

    return make


def of_shape(*dims: str | int, dtype: torch.dtype | None = None, value: float = 0) -> Maker:
    """One value throughout; dimensions behind the batch are numbers, keys of the config or seq."""

    def make(sizes: Sizes) -> torch.Tensor:
        shape = [_dim(sizes, dim) for dim in dims]
        return torch.full((sizes.batch, *shape), value, dtype=dtype or sizes.dtype)

    return make


def _dim(sizes: Sizes, dim: str | int) -> int:
    if isinstance(dim, int):
        return dim
    return sizes.seq if dim == "seq" else sizes.number(dim, default=1)


def nothing(sizes: Sizes) -> None:
    """For what a model runs without, or makes itself."""


def latents(sizes: Sizes) -> torch.Tensor | None:
    """What Perceiver reads; with a text or an image beside it, it takes that instead."""
    if sizes.takes("input_ids") or sizes.takes("pixel_values"):
        return None
    return numbers(sizes, sizes.seq, sizes.number("d_model", default=1))
