"""The share of a datasheet's figures that kernels reach, and hence the seconds of one call.

Input: the work of a call, a GPU. Output: seconds. Invariant: a roofline (Williams, Waterman and
Patterson 2009): a call takes as long as its FLOPs or its bytes do, whichever is longer.

The shares are those of large sizes. Small matrix products leave processors without a tile, which
is counted tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.arithmetic.kinds import (
    ATTENTION,
    BACKWARD,
    LOOKUP,
    REDUCTION,
)
from torchfake.inspect.timing.hardware import Hardware
from torchfake.inspect.timing.work import Work

KERNEL_SECONDS = 2e-6
"""The time of an empty kernel: it starts, fills its pipeline, and ends."""

LAUNCH_SECONDS = 6e-6
"""The time that Python, autograd and the driver take to launch one operator."""

_TILE = 128
"""Rows and columns of the result that one block of a matrix product computes."""


class Shares(NamedTuple):
    """Shares of the peak that are reached with large sizes: of FLOP/s, or of bytes/s."""

    products: float
    memory: float  # elementwise operations and copies
    reductions: float
    lookups: float
    attention: Mapping[str, tuple[float, float]]  # by kernel: (forward, backward)


_BEFORE_HOPPER = {"flash": (0.58, 0.48), "cudnn": (0.58, 0.48), "efficient": (0.35, 0.22)}
_HOPPER = {"flash": (0.35, 0.28), "cudnn": (0.50, 0.40), "efficient": (0.20, 0.12)}

_BY_GENERATION = {
    7: Shares(0.65, 0.75, 0.55, 0.45, {**_BEFORE_HOPPER, "flash": (0.30, 0.22)}),
    8: Shares(0.70, 0.75, 0.55, 0.45, _BEFORE_HOPPER),
    9: Shares(0.60, 0.75, 0.55, 0.45, _HOPPER),
    10: Shares(0.60, 0.75, 0.55, 0.45, _HOPPER),
    12: Shares(0.60, 0.75, 0.55, 0.45, _HOPPER),
}
"""The shares by the major version of the compute capability."""


def shares_of(gpu: CudaProfile) -> Shares:
    """The shares of a GPU's generation; for an unknown generation, those of the newest."""
    return _BY_GENERATION.get(gpu.major, _BY_GENERATION[12])


def seconds_of(work: Work, gpu: CudaProfile, hardware: Hardware, shares: Shares) -> float:
    """How long the kernels of one call run."""
    bandwidth = hardware.memory_bytes * _share_of_memory(work.kind, shares)
    seconds = work.num_bytes / bandwidth
    if work.flops:
        reached = _peak(work.dtype, hardware) * _share_of_flops(work, gpu, shares)
        seconds = max(seconds, work.flops * work.executed / reached)
    return KERNEL_SECONDS + seconds


def _share_of_memory(kind: str, shares: Shares) -> float:
    return {REDUCTION: shares.reductions, LOOKUP: shares.lookups}.get(kind, shares.memory)


def _peak(dtype: torch.dtype, hardware: Hardware) -> float:
    """The peak of products of a dtype; of int8, whose peak is not in the table, that of float16,
    which tensor cores reach with int8 at least.
    """
    dtype = torch.float16 if dtype is torch.int8 else dtype
    return hardware.flops.get(dtype, hardware.vector_flops)


def _share_of_flops(work: Work, gpu: CudaProfile, shares: Shares) -> float:
    for kernel, kind in ATTENTION.items():
        if work.kind.startswith(kind):
            return shares.attention[kernel][work.kind.endswith(BACKWARD)]
    return shares.products * (1.0 if work.products is None else _filled(work.products, gpu))


def _filled(products: tuple[int, int, int], gpu: CudaProfile) -> float:
    """The share of the processors' time that computes elements of the result: tiles at its edges
    are partly empty, and the last wave of tiles leaves processors idle.
    """
    batch, rows, columns = products
    tiles = batch * math.ceil(rows / _TILE) * math.ceil(columns / _TILE)
    waves = math.ceil(tiles / gpu.multi_processor_count)
    return batch * rows * columns / (waves * gpu.multi_processor_count * _TILE * _TILE)
