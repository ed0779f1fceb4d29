"""Tensors of images and videos: pixels, patches, the grids that patches form.

Input: sizes. Output: floating point tensors of one value; integer tensors of grids and positions.
Invariant: the values of grids, positions and masks are known if they are small, because models
branch on them.
"""

from __future__ import annotations

import math

import torch

from torchfake.inspect.inputs.constant_tensors import constant_floats, readable_ones
from torchfake.inspect.inputs.sizes import Sizes


def pixel_values(sizes: Sizes) -> torch.Tensor:
    """The argument ``pixel_values``: images, videos or patches, whichever the model takes."""
    if sizes.has_argument("grid_thw"):
        return patches(sizes)
    if sizes.has_argument("spatial_shapes") or sizes.has_argument("pixel_position_ids"):
        values_per_patch = sizes.num_channels * math.prod(sizes.patch_size)
        return constant_floats(sizes, sizes.num_patches, values_per_patch)
    return videos(sizes) if sizes.is_video else images(sizes)


def images(sizes: Sizes) -> torch.Tensor:
    """One image per example."""
    return constant_floats(sizes, sizes.num_channels, *sizes.image_size)


def image_sequences(sizes: Sizes) -> torch.Tensor:
    """A sequence of one image per example."""
    return constant_floats(sizes, 1, sizes.num_channels, *sizes.image_size)


def videos(sizes: Sizes) -> torch.Tensor:
    """One video, of several frames, per example."""
    return constant_floats(sizes, sizes.num_frames, sizes.num_channels, *sizes.image_size)


def image_pairs(sizes: Sizes) -> torch.Tensor:
    """Two images per example, which the model matches."""
    return constant_floats(sizes, 2, sizes.num_channels, *sizes.image_size)


def half_images(sizes: Sizes) -> torch.Tensor:
    """Images of half the height, two of which the model stacks."""
    height, width = sizes.image_size
    return constant_floats(sizes, sizes.num_channels, height // 2, width)


# Patches.


def patches(sizes: Sizes) -> torch.Tensor:
    """The patches of all images, in one dimension."""
    shape = (sizes.batch * sizes.num_patches, sizes.values_per_patch)
    return torch.full(shape, 0.5, dtype=sizes.dtype)


def patches_with_positions(sizes: Sizes) -> torch.Tensor:
    """The patches of each image, each preceded by its row and column."""
    return constant_floats(sizes, sizes.num_patches, 2 + sizes.values_per_patch)


def patches_as_images(sizes: Sizes) -> torch.Tensor:
    """The patches of all images, each as a small image."""
    return patches(sizes).view(-1, sizes.num_channels, *sizes.patch_size)


def patches_side_by_side(sizes: Sizes) -> torch.Tensor:
    """All patches side by side, as one image of a patch's height."""
    height, width = sizes.patch_size
    shape = (1, sizes.num_channels, height, sizes.batch * sizes.num_patches * width)
    return torch.full(shape, 0.5, dtype=sizes.dtype)


def merged_patches(sizes: Sizes) -> torch.Tensor:
    """Merged patches, channels last."""
    side = sizes.patch_size[0] * sizes.merge_size
    num_merged = sizes.batch * sizes.num_patches // sizes.merge_size**2
    return torch.full((num_merged, side, side, sizes.num_channels), 0.5, dtype=sizes.dtype)


def patch_mask(sizes: Sizes) -> torch.Tensor | None:
    """A mask of ones for patches."""
    return readable_ones(sizes.batch, sizes.num_patches)


def prediction_mask(sizes: Sizes) -> torch.Tensor:
    """The mask of patches that a model predicts: every other patch of each image or video."""
    (height, width), (patch_height, patch_width) = sizes.image_size, sizes.patch_size
    count = (height // patch_height) * (width // patch_width)
    if sizes.is_video:
        count *= sizes.num_frames // sizes.config_int("tubelet_size", default=1)
    return (torch.arange(count) % 2 == 0).repeat(sizes.batch, 1)


# Grids.


def video_grids(sizes: Sizes) -> torch.Tensor:
    """For each image, the numbers of frames, and of rows and columns of patches."""
    return torch.tensor([[1, *sizes.patch_grid]] * sizes.batch)


def merged_video_grids(sizes: Sizes) -> torch.Tensor:
    """For each image, the numbers of frames, and of rows and columns of merged patches."""
    rows, columns = sizes.patch_grid
    merge_size = sizes.merge_size
    return torch.tensor([[1, rows // merge_size, columns // merge_size]] * sizes.batch)


def image_grids(sizes: Sizes) -> torch.Tensor:
    """For each image, the numbers of rows and columns of patches."""
    return torch.tensor([sizes.patch_grid] * sizes.batch)


def patch_positions(sizes: Sizes) -> torch.Tensor:
    """The column and row of each patch."""
    rows, columns = sizes.patch_grid
    index = torch.arange(rows * columns)
    return torch.stack([index % columns, index // columns], -1).repeat(sizes.batch, 1, 1)


def merge_sizes(sizes: Sizes) -> torch.Tensor:
    """For each image, the number of patches that are merged along each side."""
    return torch.full((sizes.batch,), sizes.merge_size)
