"""What a GPU and its links can do, by their datasheets.

Input: a device profile. Output: its :class:`Hardware`. Invariant: peaks are those of dense tensors;
every figure has its source beside it. Called by: ``timing/efficiency`` and ``timing/collectives``;
``distributed/plan``, for FLOP/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from torchfake._core.gpu_profiles import PROFILES, CudaProfile


class Hardware(NamedTuple):
    """Peaks of one GPU. A second is not reached by any kernel: see ``timing/efficiency``."""

    flops: Mapping[torch.dtype, float]  # FLOP/s of matrix products of dense tensors
    vector_flops: float  # FLOP/s in float32 without tensor cores
    memory_bytes: float  # bytes/s
    link_bytes: float  # bytes/s to other GPUs of the node, in one direction
    source: str


def _hardware(
    half: float, vector: float, memory: float, link: float, source: str,
    *, bfloat16: bool = True, fp8: float | None = None,
) -> Hardware:  # fmt: skip
    """Peaks from the figures of a datasheet, in TFLOP/s and GB/s."""
    flops = {torch.float16: half, torch.float32: vector, torch.bfloat16: half}
    if not bfloat16:
        flops[torch.bfloat16] = vector
    if fp8 is not None:
        flops |= {torch.float8_e4m3fn: fp8, torch.float8_e5m2: fp8}
    teras = {dtype: tera * 1e12 for dtype, tera in flops.items()}
    return Hardware(teras, vector * 1e12, memory * 1e9, link * 1e9, source)


_WITHOUT_NVLINK = 25  # PCIe 4.0 x16: 32 GB/s, of which about 25 are payload
_PCIE_5 = 50

HARDWARE: dict[str, Hardware] = {
    "t4-16gb": _hardware(65, 8.1, 300, 12, "NVIDIA T4 datasheet", bfloat16=False),
    "v100-32gb": _hardware(125, 15.7, 900, 150, "NVIDIA V100 datasheet", bfloat16=False),
    "a100-40gb": _hardware(312, 19.5, 1555, 300, "NVIDIA A100 datasheet"),
    "a100-80gb": _hardware(312, 19.5, 2039, 300, "NVIDIA A100 datasheet"),
    "rtx3090-24gb": _hardware(
        71, 35.6, 936, _WITHOUT_NVLINK, "NVIDIA Ampere GA102 architecture whitepaper"
    ),
    "rtx4090-24gb": _hardware(
        165.2,
        82.6,
        1008,
        _WITHOUT_NVLINK,
        "NVIDIA Ada architecture whitepaper",
        fp8=330.3,
    ),
    "rtx5090-32gb": _hardware(
        209.5,
        104.8,
        1792,
        _PCIE_5,
        "NVIDIA RTX Blackwell architecture whitepaper",
        fp8=419,
    ),
    "a10-24gb": _hardware(125, 31.2, 600, _WITHOUT_NVLINK, "NVIDIA A10 datasheet"),
    "l4-24gb": _hardware(121, 30.3, 300, _WITHOUT_NVLINK, "NVIDIA L4 datasheet", fp8=242.5),
    "l40s-48gb": _hardware(362, 91.6, 864, _WITHOUT_NVLINK, "NVIDIA L40S datasheet", fp8=733),
    "h100-80gb": _hardware(989.4, 66.9, 3352, 450, "NVIDIA H100 datasheet", fp8=1978.9),
    "h200-141gb": _hardware(989.4, 66.9, 4800, 450, "NVIDIA H200 datasheet", fp8=1978.9),
    "b200-180gb": _hardware(2250, 75, 7700, 900, "NVIDIA HGX B200 datasheet", fp8=4500),
}


def hardware_of(gpu: CudaProfile) -> Hardware | None:
    """The figures of a GPU; None of one that is described by the user."""
    for name, profile in PROFILES.items():
        if profile.name == gpu.name:
            return HARDWARE.get(name)
    return None


def utilization(flops: int, seconds: float, gpu: CudaProfile | None) -> float | None:
    """The share of a GPU's peak in bfloat16 that so many FLOPs in so many seconds are; None if its
    figures are not known.
    """
    hardware = None if gpu is None else hardware_of(gpu)
    if hardware is None or not seconds:
        return None
    return flops / seconds / hardware.flops[torch.bfloat16]
