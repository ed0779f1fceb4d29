"""Device profiles: the CUDA devices that a mode can report.

Input: the name of a profile. Output: the figures that ``torch.cuda`` reports of such a device.
Invariant: every figure has its source beside it. Called by: ``fake``, ``_core/modes``, ``inspect``
and ``distributed`` (memory of a device), ``cli``.
"""

from __future__ import annotations

from typing import NamedTuple

from torchfake._core.pickle_names import publish
from torchfake.errors import DeviceError

_GIB = 1024**3


class CudaProfile(NamedTuple):
    """One kind of GPU, in the fields of ``torch.cuda.get_device_properties``."""

    name: str
    total_memory: int  # bytes by the datasheet; the driver keeps a few hundred MB of them
    major: int  # compute capability
    minor: int
    multi_processor_count: int
    source: str  # where the figures come from


publish(CudaProfile, "torchfake._cuda")


_TUNING = "https://docs.nvidia.com/cuda/{}-tuning-guide/"
_CAPABILITY = "https://developer.nvidia.com/cuda-gpus"

PROFILES: dict[str, CudaProfile] = {
    "t4-16gb": CudaProfile(
        "Tesla T4", 15 * _GIB, 7, 5, 40, "NVIDIA T4 datasheet; " + _TUNING.format("turing")
    ),
    "v100-32gb": CudaProfile(
        "Tesla V100-SXM2-32GB", 32 * _GIB, 7, 0, 80,
        "NVIDIA V100 datasheet; " + _TUNING.format("volta"),
    ),
    "a100-40gb": CudaProfile(
        "NVIDIA A100-SXM4-40GB", 40 * _GIB, 8, 0, 108,
        "NVIDIA A100 datasheet; " + _TUNING.format("ampere"),
    ),
    "a100-80gb": CudaProfile(
        "NVIDIA A100-SXM4-80GB", 80 * _GIB, 8, 0, 108,
        "NVIDIA A100 datasheet; " + _TUNING.format("ampere"),
    ),
    "rtx4090-24gb": CudaProfile(
        "NVIDIA GeForce RTX 4090", 24 * _GIB, 8, 9, 128,
        "NVIDIA Ada architecture whitepaper; " + _CAPABILITY,
    ),
    "rtx3090-24gb": CudaProfile(
        "NVIDIA GeForce RTX 3090", 24 * _GIB, 8, 6, 82,
        "NVIDIA Ampere GA102 architecture whitepaper; " + _CAPABILITY,
    ),
    "rtx5090-32gb": CudaProfile(
        "NVIDIA GeForce RTX 5090", 32 * _GIB, 12, 0, 170,
        "NVIDIA RTX Blackwell architecture whitepaper; " + _CAPABILITY,
    ),
    "a10-24gb": CudaProfile(
        "NVIDIA A10", 24 * _GIB, 8, 6, 72, "NVIDIA A10 datasheet; " + _CAPABILITY
    ),
    "l4-24gb": CudaProfile(
        "NVIDIA L4", 24 * _GIB, 8, 9, 58, "NVIDIA L4 datasheet; " + _CAPABILITY
    ),
    "l40s-48gb": CudaProfile(
        "NVIDIA L40S", 48 * _GIB, 8, 9, 142, "NVIDIA L40S datasheet; " + _CAPABILITY
    ),
    "h100-80gb": CudaProfile(
        "NVIDIA H100 80GB HBM3", 80 * _GIB, 9, 0, 132,
        "NVIDIA H100 datasheet; " + _TUNING.format("hopper"),
    ),
    "h200-141gb": CudaProfile(
        "NVIDIA H200", 141 * 10**9, 9, 0, 132,
        "NVIDIA H200 datasheet; " + _TUNING.format("hopper"),
    ),
    "b200-180gb": CudaProfile(
        "NVIDIA B200", 180 * 10**9, 10, 0, 148,
        "NVIDIA DGX B200 datasheet; " + _TUNING.format("blackwell"),
    ),
}  # fmt: skip

DEFAULT_PROFILE = "a100-80gb"


def profile(name: str | CudaProfile, argument: str = "gpu") -> CudaProfile:
    """The profile with this name; a profile is returned as it is.

    Raises:
        DeviceError: if there is none; the message names `argument`, and lists the names there are.
    """
    if isinstance(name, CudaProfile):
        return name
    try:
        return PROFILES[name]
    except (KeyError, TypeError):
        known = ", ".join(PROFILES)
        raise DeviceError(
            f"{argument} is {name!r}: there is no CUDA device profile {name!r}; there are: {known}"
        ) from None


def profiles() -> dict[str, CudaProfile]:
    """The device profiles that ``fake_mode(fake_cuda=NAME)`` knows, by name.

    >>> profiles()["h100-80gb"].major
    9
    """
    return dict(PROFILES)
