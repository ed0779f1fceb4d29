"""A plan is what four real processes count: bytes and messages of every rank, on gloo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.sharded_models import CASES, Case, inputs
from tests.ranks import Launch, finished, once_per_session, run_launches
from torchfake.distributed import RankPlan, plan

IN_SUITE = [
    "fsdp accumulated",
    "fsdp in mixed precision",
    "fsdp with checkpoints",
    "both of uneven sizes",
    "ddp in small buckets",
    "ddp in views, accumulated, gradients kept",
]
"""Of CASES; --all-samples takes all of them."""

Counted = Callable[[str, int], dict[str, Any]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names(metafunc.config))


def names(config: pytest.Config) -> list[str]:
    return list(CASES) if config.getoption("--all-samples") else IN_SUITE


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Counted:
    """What each rank has counted of a case."""

    def count(folder: Path) -> None:
        folder.mkdir()
        args = str(folder), *names(request.config)
        run_launches([Launch("tests.distributed.worker_counted", 4, args)], folder)

    folder = once_per_session(tmp_path_factory, "counted", count)
    finished(folder, 0).printed()
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]
    return lambda name, rank: found[rank][name]


def planned(case: Case) -> Any:
    return plan(
        case.build,
        mesh_shape=case.shape,
        mesh_dim_names=case.names or None,
        parallelize=case.parallelize,
        inputs=case.inputs or inputs,
        optimizer=case.optimizer,
        autocast=case.autocast,
        accumulate=case.accumulate,
        keep_gradients=case.keep_gradients,
        context=case.context,
        unlike_axes=case.unlike_axes or (),
        routing=case.routing,
        device="cpu",
    )


def as_counted(found: RankPlan) -> dict[str, Any]:
    """A rank's plan in the terms of worker_counted.py."""
    messages: dict[str, list[int]] = {}
    for row in found.traffic:
        sums = messages.setdefault(row.collective, [0, 0])
        sums[0] += row.num_calls
        sums[1] += row.num_bytes
    return {
        "parameters": found.parameter_bytes,
        "gradients": found.gradient_bytes,
        "optimizer state": found.optimizer_bytes,
        "first peak": found.estimate.first_step_peak_bytes,
        "peak": found.peak_bytes,
        "messages": messages,
    }


def test_every_rank_is_as_counted(name: str, counted: Counted) -> None:
    found = planned(CASES[name])
    assert found.layout.num_ranks == 4
    for rank in range(4):
        assert as_counted(found.of_rank(rank)) == counted(name, rank), rank
