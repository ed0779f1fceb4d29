"""Sharded while deferred, then made real: the weights of the eager model, and its training."""

from __future__ import annotations

import json

import pytest
from launch import printed

ALONE = "alone"  # the eager model in a process of its own
MAIN = ("fsdp", "fsdp of odd sizes", "tensor parallel", "fsdp x tp")
LIKE_FSDP = {"fsdp, not resharded", "fsdp along the last dimension", "fsdp, offloaded"}


@pytest.fixture(scope="module")
def losses_of_one() -> dict[str, list[float]]:
    return losses(1, "large")


def losses(num_ranks: int, *args: str) -> dict[str, list[float]]:
    lines = printed("worker_weights.py", num_ranks, *args)
    return dict(json.loads(line) for line in lines if line.startswith("["))


@pytest.mark.parametrize(("num_ranks", "ways"), [(2, ()), (4, ()), (8, MAIN)], ids=["2", "4", "8"])
def test_any_mesh(
    num_ranks: int, ways: tuple[str, ...], losses_of_one: dict[str, list[float]]
) -> None:
    """Bits of weights, buffers and generators, and the losses of torch's own sharding of the eager
    module, are asserted by the script on each rank.
    """
    found = losses(num_ranks, "tiny", *ways)
    assert len(found) == (len(ways) or {2: 11, 4: 14}[num_ranks])
    for name in found.keys() & LIKE_FSDP:
        assert found[name] == found["fsdp"]
    for name, values in found.items():
        if values is None:
            continue
        tolerance = 1e-3 if name == "fsdp, mixed precision" else 1e-5
        alone = losses_of_one[f"{ALONE}, of odd sizes" if "odd sizes" in name else ALONE]
        assert values == pytest.approx(alone, rel=tolerance), name


def test_one_rank(losses_of_one: dict[str, list[float]]) -> None:
    assert len(losses_of_one) == 10
    for name in ("fsdp", "ddp", *LIKE_FSDP):
        assert losses_of_one[name] == losses_of_one[ALONE]
    assert losses_of_one["fsdp of odd sizes"] == losses_of_one[f"{ALONE}, of odd sizes"]


def test_stages_of_a_pipeline() -> None:
    assert printed("worker_pipeline.py", 2) == ["equal"]
