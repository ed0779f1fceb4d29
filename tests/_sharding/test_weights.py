"""Sharded while deferred, then materialized: the weights of the eager model, and its training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests._sharding.worker_weights import ways
from tests.ranks import Launch, finished, once_per_session, run_launches

UNSHARDED = "unsharded"  # the eager model in a process of its own
MAIN = ("fsdp", "fsdp of odd sizes", "tensor parallel", "fsdp x tp")
LIKE_FSDP = {"fsdp, not resharded", "fsdp along the last dimension", "fsdp, offloaded"}
WAYS = {2: tuple(ways(2)), 4: tuple(ways(4)), 8: MAIN}
IN_SUITE = {2: MAIN[:3], 4: WAYS[4]}
"""Of WAYS; --all-samples takes all of them."""

WEIGHTS = "tests._sharding.worker_weights"

Ways = dict[int, tuple[str, ...]]
Losses = dict[str, Any]


def chosen(config: pytest.Config) -> Ways:
    return WAYS if config.getoption("--all-samples") else IN_SUITE


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        cases = [(n, name) for n, names in chosen(metafunc.config).items() for name in names]
        metafunc.parametrize(("num_ranks", "name"), cases)


def launches(ways: Ways) -> list[Launch]:
    """A pipeline, the eager model in a process of its own, and the ways to shard it."""
    return [
        Launch("tests._sharding.worker_pipeline", 2),
        Launch(WEIGHTS, 1, ("large",)),
        *(Launch(WEIGHTS, num_ranks, ("tiny", *names)) for num_ranks, names in ways.items()),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """What all launches have left."""
    all_of_them = launches(chosen(request.config))
    return once_per_session(tmp_path_factory, "weights", lambda f: run_launches(all_of_them, f))


@pytest.fixture(scope="module")
def losses(folder: Path, request: pytest.FixtureRequest) -> Callable[[int], Losses]:
    """The losses that so many ranks had, by the way to shard."""
    sizes = [launch.num_ranks for launch in launches(chosen(request.config))]

    def losses(num_ranks: int) -> Losses:
        number = sizes.index(num_ranks, 1)  # the first is the pipeline
        return dict(json.loads(line) for line in finished(folder, number).printed())

    return losses


def test_any_mesh(
    num_ranks: int, name: str, losses: Callable[[int], Losses], request: pytest.FixtureRequest
) -> None:
    """Bits of weights, buffers and generators, and the losses of torch's own sharding of the eager
    module, are asserted by the worker on each rank.
    """
    found = losses(num_ranks)
    assert list(found) == sorted(chosen(request.config)[num_ranks], key=list(ways(num_ranks)).index)
    if name in LIKE_FSDP:
        assert found[name] == found["fsdp"]
    if found[name] is not None:
        tolerance = 1e-3 if name == "fsdp, mixed precision" else 1e-5
        whole = f"{UNSHARDED}, of odd sizes" if "odd sizes" in name else UNSHARDED
        assert found[name] == pytest.approx(losses(1)[whole], rel=tolerance)


def test_all_ways_are_checked() -> None:
    assert {num_ranks: len(names) for num_ranks, names in WAYS.items()} == {2: 12, 4: 15, 8: 4}


def test_one_rank(losses: Callable[[int], Losses]) -> None:
    found = losses(1)
    assert len(found) == 10
    for name in ("fsdp", "ddp", *LIKE_FSDP):
        assert found[name] == found[UNSHARDED]
    assert found["fsdp of odd sizes"] == found[f"{UNSHARDED}, of odd sizes"]


def test_stages_of_a_pipeline(folder: Path) -> None:
    assert finished(folder, 0).printed() == ["equal"]
