"""Device profiles: the memory that drivers report, sources, and what ``torch.cuda`` returns."""

from __future__ import annotations

import pytest

from torchfake import errors, fake_mode
from torchfake._core.gpu_profiles import (
    DEFAULT_PROFILE,
    PROFILES,
    CudaProfile,
    profile,
    profiles,
    usual_profiles,
)


def test_profiles_are_found_by_name() -> None:
    assert profile("t4-16gb").name == "Tesla T4"
    own = CudaProfile("Own", 1 << 30, 9, 0, 10, "none")
    assert profile(own) is own
    assert DEFAULT_PROFILE in profiles()


@pytest.mark.parametrize("name", ["nope", "", None, ["t4-16gb"]])
def test_unknown_profiles(name: str) -> None:
    with pytest.raises(errors.DeviceError, match="there are: rtx3080-10gb, rtx2080ti-11gb, "):
        profile(name)


# GiB in torch's messages and nvidia-smi, from public logs; the first figure is the profile's.
REPORTED = {
    "h200-141gb": (139.80, 139.72, 139.81),
    "h100-80gb": (79.11, 79.18, 79.19, 79.25),
    "a100-80gb": (79.15, 79.14, 79.25),
    "a100-40gb": (39.39, 39.49, 39.56),
    "b200-180gb": (178.35, 178.36),
    "b300-288gb": (267.69,),
    "gb200-186gb": (184.31,),
    "gh200-96gb": (95.00,),
    "h100nvl-94gb": (93.09, 93.02, 93.10),
    "mi300x-192gb": (191.98, 191.69),
    "mi325x-256gb": (255.98, 255.69),
    "mi355x-288gb": (287.98,),
    "l40s-48gb": (44.39, 44.40, 44.52),
    "a10g-24gb": (22.06, 22.05, 22.15),
    "l4-24gb": (22.03, 21.99, 22.16),
    "t4-16gb": (14.56, 14.58, 14.74),
    "rtx4080-16gb": (15.67, 15.70),
    "h20-96gb": (95.00,),
    "h100pcie-80gb": (79.11, 79.18),
    "rtx4090-24gb": (23.52, 23.64),
    "rtx5090-32gb": (31.37, 31.36),
    "a6000-48gb": (47.54, 47.41),
    "v100-32gb": (31.73, 31.74),
}


@pytest.mark.parametrize("key", REPORTED)
def test_memory_is_what_drivers_report(key: str) -> None:
    """``total_memory`` is the driver's figure; figures of other drivers differ by less than 2 %."""
    own, *others = REPORTED[key]
    gibs = PROFILES[key].total_memory / 2**30
    assert abs(gibs - own) < 0.011
    assert all(abs(gibs - other) < 0.02 * gibs for other in others)


WITHOUT_ADDRESS = {"h100pcie-80gb"}
"""Profiles whose source for the memory has no public address."""


def test_the_table() -> None:
    """Profiles are sorted by memory, which is less than in the key; names differ; sources exist."""
    sizes = [found.total_memory for found in PROFILES.values()]
    assert sizes == sorted(sizes)
    assert len({found.name for found in PROFILES.values()}) == len(PROFILES)
    for key, found in PROFILES.items():
        gigabytes = int(key.rpartition("-")[2].removesuffix("gb"))
        assert 0.9 * gigabytes * 10**9 < found.total_memory < gigabytes * 2**30
        *reports, _ = found.source.split("; ")  # the last one is for capability and processors
        assert any("https://" in text for text in reports) == (key not in WITHOUT_ADDRESS)
    assert set(usual_profiles()) < set(PROFILES)
    assert DEFAULT_PROFILE in usual_profiles()


def test_the_table_cannot_be_changed_through_a_copy() -> None:
    profiles().clear()
    assert PROFILES


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_what_torch_reports(name: str) -> None:
    import torch

    known = PROFILES[name]
    with fake_mode(fake_cuda=name):
        properties = torch.cuda.get_device_properties(0)
        assert torch.cuda.get_device_capability() == (known.major, known.minor)
    assert properties.name == known.name
    assert properties.total_memory == known.total_memory
    assert properties.multi_processor_count == known.multi_processor_count
    assert known.source


def test_gpus_of_amd() -> None:
    """An AMD GPU is a ``cuda`` device; CUDA figures that do not hold for it are not used."""
    import torch
    from torch import nn

    from torchfake import estimate
    from torchfake._torch.kernels import cublas_workspace_is_kept

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 64, dtype=torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.inner(x)
            return nn.functional.scaled_dot_product_attention(x, x, x)

    with fake_mode(fake_cuda="mi300x"):
        assert torch.cuda.get_device_capability() == (9, 4)
        assert torch.cuda.get_device_properties(0).warp_size == 64
        x = torch.empty(2, 4, 64, 64, dtype=torch.bfloat16)
    found = {gpu: estimate(Attention(), x, gpu=gpu) for gpu in ("mi300x", "h100")}
    assert any("AOTriton" in line for line in found["mi300x"].left_out)
    assert any("hipBLASLt" in line for line in found["mi300x"].left_out)
    assert not found["h100"].left_out
    kernels = {gpu: {op for op in f.lives.op if "attention" in op} for gpu, f in found.items()}
    assert kernels["h100"] == {"aten._scaled_dot_product_cudnn_attention.default"}
    assert kernels["mi300x"] == {"aten._scaled_dot_product_flash_attention.default"}
    linear, row = nn.Linear(64, 64), torch.ones(8, 64)
    for gpu, mebibytes in {"mi300x": 128, "mi250x": 32, "h100": 32}.items():
        with fake_mode():
            big = estimate(linear, row, gpu=gpu)
        kept = mebibytes << 20 if cublas_workspace_is_kept() else 0  # else one for each product
        assert big.peak.by_category.get("workspace", 0) == kept
