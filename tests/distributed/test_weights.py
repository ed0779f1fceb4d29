"""Sharded while deferred, then made real: the weights of the eager model, and its training."""

from __future__ import annotations

import json

import pytest
from launch import printed

EAGER = "fsdp"  # of one rank
BIT_FOR_BIT = ("fsdp, not resharded", "fsdp along the last dimension", "fsdp, offloaded", "ddp")


@pytest.fixture(scope="module")
def losses_of_one() -> dict[str, list[float]]:
    return losses(1)


def losses(num_ranks: int, *args: str) -> dict[str, list[float]]:
    lines = printed("worker_weights.py", num_ranks, *args)
    return dict(json.loads(line) for line in lines if line.startswith("["))


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_any_mesh(num_ranks: int, losses_of_one: dict[str, list[float]]) -> None:
    """Bits of weights, buffers and generators, and the losses of torch's own sharding of the eager
    module, are asserted by the script on each rank.
    """
    found = losses(num_ranks, "tiny")
    assert len(found) == (11 if num_ranks == 2 else 14)
    for name in BIT_FOR_BIT[:3]:
        assert found[name] == found[EAGER]
    for name, values in found.items():
        if values is None:
            continue
        low_precision = name == "fsdp, mixed precision"
        expected = losses_of_one[name if name in losses_of_one else EAGER]
        assert values == pytest.approx(expected, rel=1e-3 if low_precision else 1e-5), name


def test_one_rank(losses_of_one: dict[str, list[float]]) -> None:
    assert len(losses_of_one) == 8
    for name in BIT_FOR_BIT:
        assert losses_of_one[name] == losses_of_one[EAGER]
