"""The share of a datasheet's figures that kernels reach, and hence the seconds of one call.

Input: the work of a call, a GPU. Output: seconds. Invariant: a roofline (Williams, Waterman and
Patterson 2009): a call takes as long as its FLOPs or its bytes do, whichever is longer.

The shares are those of large sizes. What small matrix products do not reach of them is counted tile
by tile (``timing/tiles``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.arithmetic.kinds import (
    ATTENTION,
    BACKWARD,
    COPY,
    DEPTHWISE,
    ELEMENTWISE,
    LOOKUP,
    REDUCTION,
)
from torchfake.inspect.arithmetic.matrices import Product
from torchfake.inspect.timing.hardware import Hardware, hardware_of
from torchfake.inspect.timing.tiles import share_of_peak
from torchfake.inspect.timing.work import Work

KERNEL_SECONDS = 2e-6
"""The time of an empty kernel: it starts, fills its pipeline, and ends."""

LAUNCH_SECONDS = 24e-6
"""The time of the host, in Python and the driver, for an operator that launches kernels."""

OTHER_SECONDS = 5e-6
"""The time of the host for an operator that launches nothing, such as a view."""

MODULE_SECONDS = 10e-6
"""The time of the host for the call of a module, without the operators that it calls."""

ENGINE_SHARE = 0.4
"""The share of these times that operators take in the engine of autograd, which runs no Python."""

_NARROWEST_GROUP = 32
"""Columns of matrices in batches that are computed each for itself; of narrower ones, such as those
of convolutions of few channels in each group, kernels compute several at the same time."""

_WINOGRAD = 0.6
"""The time of filters of 3 x 3 without tensor cores, as a share of that of all their multiply-adds:
Winograd's algorithm (Lavin and Gray 2015) does 4 of 9, and transforms images and filters."""

_CONVERSIONS = 0.5
"""How often a convolution on tensor cores moves its bytes besides, if channels are not next to each
other: many of its kernels read and write images in another layout."""

_FASTER_CACHE = 3.0
"""The bandwidth of the L2 cache, as a multiple of that of memory, at least."""

_IN_CACHE = 0.5
"""The share of the cache that the tensors of one operator may fill to be there still."""


class Shares(NamedTuple):
    """Shares of the peak that are reached with large sizes: of FLOP/s, or of bytes/s."""

    products: float  # of aligned matrices
    vector: float  # of any matrices, without tensor cores
    unaligned: float  # of `products`, where rows are no whole vectors
    batched: float  # of `products`, in batches of small matrices, and in groups of channels
    memory: float  # copies, and elementwise operations, that read and write whole vectors
    strided: float  # those that broadcast, change a layout, or mix dtypes
    reductions: float
    lookups: float
    depthwise: tuple[float, float]  # of bytes/s: (forward, backward)
    attention: Mapping[str, tuple[float, float]]  # by kernel: (forward, backward)


_BEFORE_HOPPER = {"flash": (0.58, 0.48), "cudnn": (0.58, 0.48), "efficient": (0.35, 0.22)}
_HOPPER = {"flash": (0.35, 0.28), "cudnn": (0.50, 0.40), "efficient": (0.20, 0.12)}

_ADA = {**_BEFORE_HOPPER, "efficient": (0.18, 0.12)}

_DATA_CENTRE = (0.80, 0.6, 0.6, 0.75, 0.60, 0.55, 0.45, (0.65, 0.2))
_WITH_GDDR = Shares(0.60, 0.55, 0.6, 0.5, 0.90, 0.55, 0.80, 0.45, (0.65, 0.2), _ADA)

_BY_CAPABILITY = {
    (7, 0): Shares(0.65, *_DATA_CENTRE, {**_BEFORE_HOPPER, "flash": (0.30, 0.22)}),
    (8, 0): Shares(0.70, *_DATA_CENTRE, _BEFORE_HOPPER),
    (8, 6): _WITH_GDDR,
    (9, 0): Shares(0.60, *_DATA_CENTRE, _HOPPER),
    (12, 0): _WITH_GDDR,
}
"""The shares by the compute capability from which on they hold."""

_SLOWED = 3.5
"""Tensor cores with fewer times the FLOP/s of the other cores work at half of their rate or less:
2 of GeForce cards, 3.4 of the H20."""


def shares_of(gpu: CudaProfile) -> Shares:
    """The shares of a GPU's generation; for an unknown generation, those of the newest.

    Tensor cores of GeForce cards add up float32 at half their rate, those of the H20 work at a
    seventh of the H100's: then nothing else is a limit, and large products reach all of it.
    """
    known = [each for each in _BY_CAPABILITY if each <= (gpu.major, gpu.minor)]
    shares = _BY_CAPABILITY[max(known, default=(7, 0))]
    hardware = hardware_of(gpu)
    if hardware is None or hardware.flops[torch.float16] >= _SLOWED * hardware.vector_flops:
        return shares
    return shares._replace(products=1.0)


def seconds_of(work: Work, gpu: CudaProfile, hardware: Hardware, shares: Shares) -> float:
    """How long the kernels of one call run."""
    seconds = work.num_bytes / (hardware.memory_bytes * _share_of_memory(work, shares))
    if work.kind in _PASSED_ON and work.num_bytes < _IN_CACHE * hardware.cache_bytes:
        seconds /= _FASTER_CACHE
    if work.flops:
        moved, seconds = seconds, max(seconds, _seconds_of_flops(work, gpu, hardware, shares))
        if work.is_channels_first and _on_tensor_cores(work, gpu, hardware):
            seconds += _CONVERSIONS * moved
    return KERNEL_SECONDS + seconds


_PASSED_ON = (ELEMENTWISE, REDUCTION, COPY)
"""Kinds of operators that mostly read what the operator before has just written."""


def _share_of_memory(work: Work, shares: Shares) -> float:
    if work.kind in (ELEMENTWISE, COPY) and not work.is_uniform:
        return shares.strided
    if work.kind == DEPTHWISE:
        return shares.depthwise[work.is_backward]
    return {REDUCTION: shares.reductions, LOOKUP: shares.lookups}.get(work.kind, shares.memory)


def _seconds_of_flops(work: Work, gpu: CudaProfile, hardware: Hardware, shares: Shares) -> float:
    if work.kind == DEPTHWISE:
        return work.flops / hardware.vector_flops
    peak = _peak(work, gpu, hardware) * hardware.clock
    for kernel, kind in ATTENTION.items():
        if work.kind.startswith(kind):
            share = shares.attention[kernel][work.kind.endswith(BACKWARD)]
            return work.flops * work.executed / (peak * share)
    if not work.products:
        return work.flops * work.executed / (peak * shares.products)
    if _on_tensor_cores(work, gpu, hardware):
        each = (product.flops / _share_of(product, gpu, shares) for product in work.products)
        return sum(each) / peak
    speed = hardware.vector_flops / hardware.flops[torch.float16]
    processors = gpu.multi_processor_count
    each = (found.flops / share_of_peak(found, processors, speed) for found in work.products)
    return sum(each) / (peak * shares.vector) * (_WINOGRAD if work.has_short_filters else 1)


def _share_of(product: Product, gpu: CudaProfile, shares: Shares) -> float:
    """The share of the peak that tensor cores reach."""
    share = shares.products * share_of_peak(product, gpu.multi_processor_count)
    if not product.is_aligned:
        share *= shares.unaligned
    elif product.number > 1 and product.columns >= _NARROWEST_GROUP:
        share *= shares.batched
    return share


def _on_tensor_cores(work: Work, gpu: CudaProfile, hardware: Hardware) -> bool:
    return runs_in_tf32(work, gpu) or _peak(work, gpu, hardware) > hardware.vector_flops


def _peak(work: Work, gpu: CudaProfile, hardware: Hardware) -> float:
    """The peak of products of a dtype. That of TF32 is half of float16's, from Ampere on; that of
    int8, which is not in the table, is given as float16's, which tensor cores reach at least.
    """
    if runs_in_tf32(work, gpu):
        return hardware.flops[torch.float16] / 2
    dtype = torch.float16 if work.dtype is torch.int8 else work.dtype
    return hardware.flops.get(dtype, hardware.vector_flops)


def runs_in_tf32(work: Work, gpu: CudaProfile) -> bool:
    """Whether tensor cores compute a product of float32: the program allows it, and the GPU is of
    Ampere's generation or later.
    """
    return work.is_tf32 and gpu.major >= 8
