"""A step whose matrix products run without tensor cores says so, and what autocast makes of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchfake import fake_mode
from torchfake.inspect import Estimate, estimate
from torchfake.inspect.timing.slow_products import slow_products


def trained(gpu: str, dtype: torch.dtype = torch.float32, **options: object) -> Estimate:
    with fake_mode():
        layers = nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096)
        model, inputs = nn.Sequential(*layers).to(dtype), torch.empty(8192, 4096, dtype=dtype)
        return estimate(model, inputs, gpu=gpu, optimizer="sgd", **options)


def faster(found: Estimate) -> list[str]:
    return [line.strip() for line in str(found).splitlines() if line.startswith("  faster")]


@pytest.mark.parametrize(
    ("gpu", "slow", "fast"),
    [
        ("h100-80gb", torch.float32, torch.bfloat16),
        ("t4-16gb", torch.float32, torch.float16),
        ("v100-32gb", torch.bfloat16, torch.float16),  # has tensor cores for float16 only
    ],
)
def test_what_autocast_saves_is_what_it_saves_when_it_is_run(
    gpu: str, slow: torch.dtype, fast: torch.dtype
) -> None:
    found, cast = trained(gpu, slow), trained(gpu, slow, autocast=fast)
    assert found.schedule is not None
    assert found.gpu is not None
    products = slow_products(found.schedule.commands, found.gpu)
    assert products is not None
    assert (products.slow, products.fast) == ((slow,), fast)
    saved = products.seconds - products.fast_seconds
    assert found.step_seconds is not None
    assert cast.step_seconds == pytest.approx(found.step_seconds - saved, rel=0.1)
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    (line,) = faster(found)
    assert f"matrix products in {names[slow]} take " in line
    assert " of it, without tensor cores; " in line
    assert f"; with autocast to {names[fast]} they take " in line
    assert not faster(cast)
    said = found.to_dict()["schedule"]["faster"]
    assert (said["seconds"], said["fast_seconds"]) == (products.seconds, products.fast_seconds)
    assert "faster" not in cast.to_dict()["schedule"]


def test_nothing_is_said_where_it_would_save_little() -> None:
    assert not faster(trained("h100-80gb", torch.bfloat16))
    with fake_mode():
        small = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        assert not faster(estimate(small, torch.empty(8, 64), gpu="t4-16gb", optimizer="sgd"))
    assert not faster(trained("mi300x-192gb"))  # whose figures are not known


def test_products_in_tf32_are_not_slow() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert not faster(trained("h100-80gb"))
        assert faster(trained("v100-32gb"))
    finally:
        torch.set_float32_matmul_precision(before)
