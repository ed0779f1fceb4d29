"""Peak FLOP/s and bandwidths of GPUs and their links, from datasheets.

Input: a device profile. Output: its :class:`Hardware`. Invariant: peaks are those of dense tensors;
every figure has its source beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from torchfake._core.gpu_profiles import PROFILES, CudaProfile


class Hardware(NamedTuple):
    """Peaks of one GPU, which no kernel reaches: ``timing/efficiency`` has the shares reached."""

    flops: Mapping[torch.dtype, float]  # FLOP/s of matrix products of dense tensors
    vector_flops: float  # FLOP/s in float32 without tensor cores
    memory_bytes: float  # bytes/s
    link_bytes: float  # bytes/s to other GPUs of the node, in one direction
    source: str
    cache_bytes: int  # of the L2 cache
    clock: float = 1.0
    """Under load, as a multiple of the clock at which the peaks are stated; those that differ were
    chosen with the rows of docs/time.md that are not held out."""


def _hardware(
    half: float, vector: float, memory: float, link: float, cache: float, source: str,
    *, bfloat16: bool = True, fp8: float | None = None, clock: float = 1.0,
) -> Hardware:  # fmt: skip
    """Peaks from the figures of a datasheet, in TFLOP/s and GB/s; the L2 cache in MiB."""
    flops = {torch.float16: half, torch.float32: vector, torch.bfloat16: half}
    if not bfloat16:
        flops[torch.bfloat16] = vector
    if fp8 is not None:
        flops |= {torch.float8_e4m3fn: fp8, torch.float8_e5m2: fp8}
    teras = {dtype: tera * 1e12 for dtype, tera in flops.items()}
    num_bytes = int(cache * (1 << 20))
    return Hardware(teras, vector * 1e12, memory * 1e9, link * 1e9, source, num_bytes, clock)


_WITHOUT_NVLINK = 25  # PCIe 4.0 x16: 32 GB/s, of which about 25 are payload
_PCIE_5 = 50

_IMAGES = "https://images.nvidia.com"
_PAGES = "https://www.nvidia.com"
_DATASHEETS = f"{_PAGES}/content/dam/en-zz/Solutions/Data-Center"
_FABRIC = (
    "https://github.com/Lightning-AI/pytorch-lightning/blob/7f0c343/src/lightning/fabric/utilities/"
    "throughput.py"
)
_TITAN = "https://github.com/pytorch/torchtitan/blob/b5bcd76/torchtitan/tools/utils.py"


def _sheet(document: str, address: str, cited_in: str | None = None) -> str:
    """The text of a source: a document of NVIDIA, its address, and public code that cites it."""
    cited = f"; its FLOP/s in {cited_in}" if cited_in else ""
    return f"NVIDIA {document}: {address}{cited}"


_GA102 = _sheet(
    "Ampere GA102 architecture whitepaper",
    f"{_PAGES}/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
    _FABRIC,
)
_TURING = _sheet(
    "Turing architecture whitepaper",
    f"{_IMAGES}/aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/"
    "NVIDIA-Turing-Architecture-Whitepaper.pdf",
)
_ADA = _sheet(
    "Ada architecture whitepaper",
    f"{_IMAGES}/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf",
    _FABRIC,
)
_BLACKWELL = _sheet(
    "RTX Blackwell architecture whitepaper",
    f"{_IMAGES}/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
)
_T4 = _sheet("T4 datasheet", f"{_DATASHEETS}/tesla-t4/t4-tensor-core-datasheet-951643.pdf", _FABRIC)
_V100 = _sheet(
    "V100 datasheet",
    f"{_IMAGES}/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    _FABRIC,
)
_A10 = _sheet("A10 datasheet", f"{_DATASHEETS}/a10/pdf/a10-datasheet.pdf", _FABRIC)
_A10G = (
    "NVIDIA A10G datasheet; compared with A10: "
    "https://www.baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference/"
)
_A100 = _sheet(
    "A100 datasheet",
    f"{_DATASHEETS}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
    _FABRIC,
)
_L40 = (
    "NVIDIA L40 and L40S datasheets; both as listed at "
    "https://www.mullet.se/product.html?product_id=355414"
)
_RTX_6000 = (
    "NVIDIA RTX 6000 Ada datasheet; vector and memory as listed at "
    "https://www.grafikkarten.com/de/news/nvidia-rtx-6000-grafikkarte-der-ada-generation"
)
_A6000 = (
    "NVIDIA RTX A6000 datasheet; as listed at https://llmperf.net/categories/gpu/Nvidia-A6000-GPUs"
)
_H100 = _sheet(
    "H100 datasheet",
    "https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306",
    _FABRIC,
)
_H200 = _sheet(
    "H200 datasheet",
    "https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446",
    _FABRIC,
)
_H20 = (
    "NVIDIA's figures of H20, as published: https://zangshuxian.com/new/674733024499207168; links: "
    "https://willitrunai.com/es/gpus/h20-96gb"
)
_HGX = "https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703"
_B200 = (
    f"{_sheet('HGX B200 datasheet', _HGX, _TITAN)}; 7672 GB/s by the driver's clocks: "
    "https://github.com/pytorch/ao/pull/4002"
)
_B300 = (
    f"{_sheet('HGX B300 datasheet', _HGX, _TITAN)}; memory: "
    "https://verda.com/blog/gb300-nvl72-architecture"
)
_GB200 = (
    f"{_sheet('GB200 NVL72 datasheet', f'{_PAGES}/en-us/data-center/dgx-gb200', _TITAN)}; memory: "
    "https://glennklockwood.com/garden/processors/B200"
)

HARDWARE: dict[str, Hardware | None] = {
    "rtx3080-10gb": _hardware(59.5, 29.8, 760, _WITHOUT_NVLINK, 5, _GA102),
    "rtx2080ti-11gb": _hardware(53.8, 13.4, 616, 12, 5.5, _TURING, bfloat16=False),
    "rtx4070ti-12gb": _hardware(80.2, 40.1, 504, _WITHOUT_NVLINK, 48, _ADA, fp8=160.4),
    "t4-16gb": _hardware(65, 8.1, 300, 12, 4, _T4, bfloat16=False, clock=0.60),
    "rtx5080-16gb": _hardware(112.6, 56.3, 960, _PCIE_5, 64, _BLACKWELL, fp8=225.1),
    "rtx4080-16gb": _hardware(97.5, 48.7, 716.8, _WITHOUT_NVLINK, 64, _ADA, fp8=194.9),
    "v100-16gb": _hardware(125, 15.7, 900, 150, 6, _V100, bfloat16=False),
    "a10-24gb": _hardware(125, 31.2, 600, _WITHOUT_NVLINK, 6, _A10),
    "l4-24gb": _hardware(121, 30.3, 300, _WITHOUT_NVLINK, 48, _ADA, fp8=242.5),
    "a10g-24gb": _hardware(70, 35, 600, _WITHOUT_NVLINK, 6, _A10G),
    "rtx4090-24gb": _hardware(165.2, 82.6, 1008, _WITHOUT_NVLINK, 72, _ADA, fp8=330.3, clock=1.09),
    "rtx3090-24gb": _hardware(71, 35.6, 936, _WITHOUT_NVLINK, 6, _GA102, clock=1.10),
    "rtx5090-32gb": _hardware(209.5, 104.8, 1792, _PCIE_5, 96, _BLACKWELL, fp8=419),
    "v100-32gb": _hardware(125, 15.7, 900, 150, 6, _V100, bfloat16=False),
    "a100-40gb": _hardware(312, 19.5, 1555, 300, 40, _A100),
    "l40s-48gb": _hardware(362, 91.6, 864, _WITHOUT_NVLINK, 96, _L40, fp8=733),
    "l40-48gb": _hardware(181, 90.5, 864, _WITHOUT_NVLINK, 96, _L40, fp8=362),
    "rtx6000ada-48gb": _hardware(364.2, 91.1, 960, _WITHOUT_NVLINK, 96, _RTX_6000, fp8=728.5),
    "a6000-48gb": _hardware(154.8, 38.7, 768, 56, 6, _A6000),
    "h100pcie-80gb": _hardware(756, 51, 2000, _PCIE_5, 50, _H100, fp8=1513),
    "h100-80gb": _hardware(989.4, 66.9, 3352, 450, 50, _H100, fp8=1978.9),
    "a100-80gb": _hardware(312, 19.5, 2039, 300, 40, _A100),
    "h100nvl-94gb": _hardware(835.5, 60, 3900, 300, 50, _H100, fp8=1671),
    "gh200-96gb": _hardware(989.4, 66.9, 4000, 450, 50, "NVIDIA GH200 datasheet", fp8=1978.9),
    "h20-96gb": _hardware(148, 44, 4000, 450, 60, _H20, fp8=296),
    "h200-141gb": _hardware(989.4, 66.9, 4800, 450, 50, _H200, fp8=1978.9),
    "b200-180gb": _hardware(2250, 75, 7700, 900, 126, _B200, fp8=4500),
    "gb200-186gb": _hardware(2500, 80, 8000, 900, 126, _GB200, fp8=5000),
    "b300-288gb": _hardware(2250, 75, 7700, 900, 126, _B300, fp8=4500),
    # For AMD's GPUs the share of the peaks that kernels reach is not known: they are not timed.
    "mi250x-64gb": None,
    "mi300x-192gb": None,
    "mi325x-256gb": None,
    "mi355x-288gb": None,
}


def name_of(gpu: CudaProfile) -> str:
    """The name of the profile of a GPU; "" for a GPU that the user describes."""
    return next((name for name, profile in PROFILES.items() if profile.name == gpu.name), "")


def hardware_of(gpu: CudaProfile) -> Hardware | None:
    """The figures of a GPU; None for AMD's GPUs, and for a GPU that the user describes."""
    return HARDWARE.get(name_of(gpu))


def why_untimed(gpu: CudaProfile | None) -> str:
    """Why the time of a step on a GPU is not estimated; "" if it is, or without a GPU."""
    if gpu is None or hardware_of(gpu) is not None:
        return ""
    return f"not estimated: the FLOP/s and bandwidths of {gpu.name} are not known here"


def utilization(flops: int, seconds: float, gpu: CudaProfile | None) -> float | None:
    """FLOPs per second as a share of the GPU's peak in bfloat16; None if the peak is not known."""
    hardware = None if gpu is None else hardware_of(gpu)
    if hardware is None or not seconds:
        return None
    return flops / seconds / hardware.flops[torch.bfloat16]


def peak_text(gpu: CudaProfile) -> str:
    """The peak of which :func:`utilization` is a share: ``15.7 TFLOP/s in bf16``."""
    hardware = hardware_of(gpu)
    assert hardware is not None, "the figures of the GPU are known"
    peak, has_cores = hardware.flops[torch.bfloat16], has_bfloat16_cores(hardware)
    return f"{peak / 1e12:,.4g} TFLOP/s in bf16{', without tensor cores' * (not has_cores)}"


def has_bfloat16_cores(hardware: Hardware) -> bool:
    """Whether products in bfloat16 are as fast as in float16."""
    return hardware.flops[torch.bfloat16] == hardware.flops[torch.float16]
