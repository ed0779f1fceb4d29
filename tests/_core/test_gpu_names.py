"""GPUs are found by model or prefix, whatever the case and punctuation; errors suggest names."""

from __future__ import annotations

import pytest

from torchfake import estimate, fake_mode, fit, profiles
from torchfake._core.gpu_names import did_you_mean_gpu, keys_named
from torchfake._core.gpu_profiles import named_profiles, profile
from torchfake.errors import DeviceError

NAMES = {key: gpu.name for key, gpu in profiles().items()}

CLEAR = {
    "h100-80gb": ("h100", "H100", "H100 80GB", "h100_80", "nvidia h100", "H100 SXM5", "h100-sxm"),
    "h100pcie-80gb": ("H100 PCIe", "h100p"),
    "a100-80gb": ("A100 80GB", "NVIDIA A100-SXM4-80GB"),
    "rtx4090-24gb": ("4090", "RTX 4090", "GeForce RTX 4090"),
    "rtx4070ti-12gb": ("4070 Ti", "rtx4070t"),
    "a10-24gb": ("a10", "A10-24GB"),
    "l4-24gb": ("L4",),
    "l40-48gb": ("L40",),
    "a6000-48gb": ("RTX A6000", "a6000"),
    "h20-96gb": ("H20",),
    "gh200-96gb": ("GH200", "gh2"),
    "mi300x-192gb": ("MI300X", "AMD Instinct MI300X"),
    "b300-288gb": ("b300", "B300-270GB"),
}


@pytest.mark.parametrize("key", CLEAR)
def test_names_that_are_clear(key: str) -> None:
    for name in CLEAR[key]:
        assert keys_named(name, NAMES) == (key,), name
        assert profile(name) is profiles()[key]


@pytest.mark.parametrize("key", NAMES)
def test_every_key_and_every_drivers_name_is_clear(key: str) -> None:
    for name in (key, key.upper(), key.replace("-", " "), NAMES[key]):
        assert keys_named(name, NAMES) == (key,), name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a100", "gpu='a100' may mean a100-40gb or a100-80gb: give one of these names"),
        ("v100", "may mean v100-16gb or v100-32gb"),
        ("h2", "may mean h20-96gb or h200-141gb"),
        (
            "4070",
            r"there is no such GPU; did you mean rtx4070ti-12gb, .*\? Others are described by ",
        ),
        ("mi300", "did you mean mi300x-192gb"),
        ("h1000", "did you mean h100-80gb"),
        ("nvidia", "gpu='nvidia': there is no such GPU; there are: "),
        ("", "there is no such GPU"),
        ("x" * 10_000, "there is no such GPU; there are: "),
        ("Arc A770", "there is no such GPU; there are: "),
        ("40GB", "there is no such GPU"),
        ("cuda:0", "there is no such GPU; there are: "),
        ("h100,t4", "there is no such GPU"),
    ],
)
def test_names_that_are_not(name: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        profile(name)


def test_what_is_close_is_suggested() -> None:
    assert did_you_mean_gpu("rtx4099", NAMES).startswith("; did you mean rtx4090-24gb")
    assert did_you_mean_gpu("something", NAMES) == ""


def test_lists() -> None:
    assert list(named_profiles(["H100, t4", "4090"])) == ["h100-80gb", "t4-16gb", "rtx4090-24gb"]
    assert named_profiles(["all"]) == profiles()
    assert named_profiles([]) == {}
    with pytest.raises(DeviceError, match="--gpu='': there is no such GPU"):
        named_profiles(["h100,"], "--gpu")


def test_where_names_are_taken() -> None:
    import torch

    with fake_mode(fake_cuda="H100 80GB"):
        assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
        layer, x = torch.nn.Linear(8, 8), torch.empty(2, 8)
    assert estimate(layer, x, gpu="h100").gpu == profiles()["h100-80gb"]
    fits = fit(estimate(layer, x), "T4,h100", "4090", vary=None)
    assert [f.gpu for f in fits] == ["t4-16gb", "h100-80gb", "rtx4090-24gb"]
    with pytest.raises(DeviceError, match="fake_cuda='a100' may mean"), fake_mode(fake_cuda="a100"):
        pass


@pytest.mark.parametrize("name", ["8xh100", "8 x H100", "8*h100-80gb", "h100x8", "h100:8"])
def test_a_number_of_gpus_is_for_plan(name: str) -> None:
    with pytest.raises(DeviceError, match="--gpus 8 --gpu h100-80gb"):
        profile(name)
