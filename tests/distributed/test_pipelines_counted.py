"""A plan of a pipeline is what four real processes count: each stage's bytes and messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.pipelined_models import PIPELINES, PipelineCase, tokens
from tests.distributed.test_plan_counted import Counted, as_counted
from tests.ranks import Launch, finished, once_per_session, run_launches
from torchfake.distributed import Plan, plan
from torchfake.inspect.storages.lifetimes import CATEGORIES

IN_SUITE = ["1f1b and fsdp", "zero bubble in a v"]
"""Of PIPELINES, which has more."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names(metafunc.config))


def names(config: pytest.Config) -> list[str]:
    return list(PIPELINES) if config.getoption("--all-samples") else IN_SUITE


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Counted:
    """What each rank has counted of a case."""

    def count(folder: Path) -> None:
        folder.mkdir()
        args = str(folder), *names(request.config)
        run_launches([Launch("tests.distributed.worker_pipelines", 4, args)], folder)

    folder = once_per_session(tmp_path_factory, "counted-pipelines", count)
    finished(folder, 0).printed()
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]
    return lambda name, rank: found[rank][name]


def planned(case: PipelineCase, **options: object) -> Plan:
    return plan(
        case.build,
        mesh_shape=case.shape,
        mesh_dim_names=case.names,
        parallelize=case.parallelize,
        inputs=lambda: tokens(case.num_microbatches),
        target=lambda: tokens(case.num_microbatches),
        optimizer=case.optimizer,
        keep_gradients=case.keep_gradients,
        **({"device": "cpu"} | options),  # type: ignore[arg-type]
    )


def test_every_stage_is_as_counted(name: str, counted: Counted) -> None:
    found = planned(PIPELINES[name])
    assert found.layout.num_ranks == 4
    for rank in range(4):
        of_rank = found.of_rank(rank)
        held = of_rank.estimate.held_bytes(
            of_rank.estimate.lives.category == CATEGORIES.index("gradients")
        )
        left = {"gradients": held[-1]}  # before that FSDP's are those of whole parameters
        assert as_counted(of_rank) | left == counted(name, rank), rank
