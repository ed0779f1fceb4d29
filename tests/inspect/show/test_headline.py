"""The first line about a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchfake import fake_mode
from torchfake._core.gpu_profiles import usual_profiles
from torchfake.inspect import summary
from torchfake.inspect.contents.weights import weights
from torchfake.inspect.memory.fit import RESERVED_BYTES
from torchfake.inspect.show.headline import gpus_for, headline, num_gpus, training_bytes


def linear(width: int, **options: object) -> nn.Module:
    with fake_mode():
        return nn.Linear(width, width, bias=False, **options)  # type: ignore[arg-type]


def test_a_small_model_needs_no_gpu_by_name() -> None:
    assert headline(summary(linear(4))) == "16 params | 64 B fp32"


def test_of_a_gpu_that_is_named_it_says_whether_the_weights_fit() -> None:
    large, x = linear(1 << 16), torch.empty(1, 1 << 16, device="meta")
    for found in (summary(large, gpu="t4"), summary(large, x, gpu="t4")):
        assert headline(found).endswith(" fp32 | the weights do not fit on Tesla T4")
    assert headline(summary(linear(4), gpu="t4")).endswith("| the weights fit on Tesla T4")


def test_kernels_that_the_smallest_gpu_lacks_are_named() -> None:
    large = linear(1 << 14)
    said = headline(summary(large), weights(large, "int4"))
    assert said.endswith(
        " for the int4 weights: a10-24gb (int4 kernels need compute capability 8.0)"
    )
    assert headline(summary(large), weights(large, "nf4")).endswith(" nf4 weights: t4-16gb")
    assert headline(summary(large), with_gpu=False) == "268M params | 1.07 GB (1.00 GiB) fp32"


def test_gpus_are_those_with_room_for_the_weights_and_the_states() -> None:
    found = headline(summary(linear(1 << 15)))
    assert (
        found
        == "1.07B params | 4.29 GB (4.00 GiB) fp32 | smallest of 15 common GPUs for the weights: t4-16gb"
    )
    text = str(summary(linear(1 << 15)))
    assert "\ntraining    AdamW in mixed precision holds 17.2 GB, before activations" in text


def test_what_is_frozen_has_no_states() -> None:
    model = nn.Sequential(linear(1 << 13), linear(1 << 13))
    assert training_bytes(summary(model)) == 2 * 16 * (1 << 26)
    model[0].requires_grad_(False)
    assert training_bytes(summary(model)) == (16 + 4) * (1 << 26)
    model[1].requires_grad_(False)
    assert "training" not in str(summary(model))


@pytest.mark.parametrize("name", usual_profiles())
def test_a_gpu_takes_what_is_not_reserved(name: str) -> None:
    gpu = usual_profiles()[name]
    room = gpu.total_memory - RESERVED_BYTES
    assert num_gpus(room, gpu) == 1
    assert num_gpus(room + 1, gpu) == 2
    assert num_gpus(5 * room, gpu) == 8
    assert usual_profiles()[gpus_for(room)].total_memory <= gpu.total_memory


def test_more_than_one_gpu_holds() -> None:
    largest = max(gpu.total_memory for gpu in usual_profiles().values())
    usable = usual_profiles()["h100-80gb"].total_memory - RESERVED_BYTES
    assert gpus_for(largest) == "at least 4 x h100-80gb"
    assert gpus_for(17 * usable) == "at least 17 x h100-80gb"  # not the next power of two
    assert gpus_for(17 * usable + 1) == "at least 18 x h100-80gb"
