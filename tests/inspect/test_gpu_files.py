"""Profiles of GPUs from a TOML file, and those that torchfake has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.inspect.small_models import model_and_inputs
from torchfake import CudaProfile, fake_mode, profiles
from torchfake.errors import DeviceError
from torchfake.inspect import estimate, fit, read_profiles

TOML = """
[my-card]
total_memory = "24 GiB"
name = "My Card"
major = 8
minor = 9

["plain.card"]
total_memory = 16_000_000_000
"""


def test_profiles_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    path.write_text(TOML)
    found = read_profiles(path)
    assert found["my-card"].total_memory == 24 * 2**30
    assert found["my-card"].name == "My Card"
    assert found["plain.card"] == replace_name(found["plain.card"], "plain.card")
    assert (found["plain.card"].total_memory, found["plain.card"].major) == (16 * 10**9, 8)
    with fake_mode(fake_cuda=found["my-card"]):
        assert torch.cuda.get_device_properties(0).total_memory == 24 * 2**30
        assert torch.cuda.get_device_capability() == (8, 9)
    model, inputs = model_and_inputs("vit")
    assert fit(estimate(model, inputs), found["my-card"], vary=None)[0].gpu == "My Card"


def replace_name(profile: CudaProfile, name: str) -> CudaProfile:
    return profile._replace(name=name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no profiles"),
        ("x = [", "is not TOML"),
        ("card = 3", "not a table"),
        ("[card]", "lacks total_memory"),
        ("[card]\ntotal_memory = '24 XB'", "not a number of bytes"),
        ("[card]\ntotal_memory = true", "not a number of bytes|not a possible"),
        ("[card]\ntotal_memory = -3", "not a possible number"),
        ("[card]\ntotal_memory = 1\nmemory = 2", "has unknown keys: memory; known keys: name"),
        ("[card]\ntotal_memory = 1\nmajor = 8.9", "major = 8.9 is not a whole number"),
    ],
)
def test_files_that_are_not_of_the_form(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gpus.toml"
    path.write_text(text)
    with pytest.raises(DeviceError, match=said) as caught:
        read_profiles(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="No such file"):
        read_profiles(tmp_path / "none.toml")


def test_every_profile_has_a_source() -> None:
    assert all(p.source and p.total_memory > 10**9 for p in profiles().values())
