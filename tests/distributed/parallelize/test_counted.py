"""Layouts that are found in models are what four real processes count, on gloo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

from tests.distributed.parallelize.laid_out_models import LAID_OUT  # noqa: E402
from tests.distributed.parallelize.token_layouts import SHIPS_RULES, TOKENS  # noqa: E402
from tests.distributed.test_plan_counted import as_counted, planned  # noqa: E402
from tests.ranks import Launch, finished, once_per_session, run_launches  # noqa: E402

IN_SUITE = [
    "llama, fsdp, a way for each block",
    "llama, hybrid, full",
    "llama, both, mixed, selective",
    "llama, ring, sequences",
    "qwen3 moe, sequences, experts",
    "llama, zero 1",
]
"""Of LAID_OUT and TOKENS; --all-samples takes all of them."""

Counted = Callable[[str, int], dict[str, Any]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names(metafunc.config))


def names(config: pytest.Config) -> list[str]:
    found = [*LAID_OUT, *TOKENS] if config.getoption("--all-samples") else IN_SUITE
    return [name for name in found if SHIPS_RULES or not name.endswith(("sequences", "experts"))]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Counted:
    """What each rank has counted of a case."""

    def count(folder: Path) -> None:
        folder.mkdir()
        args = str(folder), *names(request.config)
        worker = "tests.distributed.parallelize.worker_laid_out"
        run_launches([Launch(worker, 4, args)], folder)

    folder = once_per_session(tmp_path_factory, "laid out", count)
    finished(folder, 0).printed()
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]
    return lambda name, rank: found[rank][name]


def test_every_rank_is_as_counted(name: str, counted: Counted) -> None:
    found = planned({**LAID_OUT, **TOKENS}[name])
    for rank in range(4):
        assert as_counted(found.of_rank(rank)) == counted(name, rank), rank
