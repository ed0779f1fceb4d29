"""Device profiles."""

from __future__ import annotations

import pytest

from torchfake import errors, fake_mode
from torchfake._core.gpu_profiles import DEFAULT_PROFILE, PROFILES, CudaProfile, profile, profiles


def test_profiles_are_found_by_name() -> None:
    assert profile("t4-16gb").name == "Tesla T4"
    own = CudaProfile("Own", 1 << 30, 9, 0, 10, "none")
    assert profile(own) is own
    assert DEFAULT_PROFILE in profiles()


@pytest.mark.parametrize("name", ["h100", "", None, ["t4-16gb"]])
def test_unknown_profiles(name: str) -> None:
    with pytest.raises(errors.DeviceError, match="there are: t4-16gb, "):
        profile(name)


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
