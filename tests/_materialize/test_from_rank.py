"""``from_rank=``: one rank has the values, and each other one gets what it has of each tensor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.ranks import Launch, finished, once_per_session, run_launches

CASES = (
    "replicated", "every_way", "tied_and_sharded", "from_checkpoints", "loaded_on_the_source",
    "parts_and_dtypes", "groups", "failures", "mismatches", "memory",
)  # fmt: skip
REFUSED = {
    "shape": r"RankMismatchError: weight is float32\[6, 4\] on rank 0, and float32\[5, 4\] on",
    "dtype": r"RankMismatchError: weight is float32\[5, 4\] on rank 0, and float64\[5, 4\] on",
    "missing": "RankMismatchError: rank 0 has bias, and rank 3 does not",
    "more": "RankMismatchError: rank 1 has bias, and rank 0 does not",
    "ties": "RankMismatchError: embed.weight and head.weight are one tensor on rank 0, and not on",
    "cast": r"RankMismatchError: weight is float32.* on rank 0, and bfloat16.* on rank 1",
    "gone": "RankMismatchError: weight is real and sharded on rank 0, .*checkpoint=.*rank 1 needs",
    "without from_rank": "RankMismatchError: ranks 0, .*: on rank 0, weight is real, .*from_rank=",
    "changed": "RankMismatchError: weight was changed on rank 0 after it was sharded",
    "empty": "RankMismatchError: rank 3 has no part of weight",
    "source": "RankMismatchError: from_rank is [01] here, and [01] on rank",
    "file": "(CheckpointError: |MaterializeError: rank 0 failed, .*)checkpoint is '/not/there'",
    "graph": "MaterializeError: (rank 2 failed, .*)?weight cannot be materialized in place",
}
WORKER = "tests._materialize.worker_from_rank"
LAUNCHES = [Launch(WORKER, 4, CASES), Launch(WORKER, 3, ("dies",), independent=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all launches have left."""
    return once_per_session(tmp_path_factory, "from_rank", lambda f: run_launches(LAUNCHES, f))


def lines(folder: Path) -> list[list[str]]:
    done = finished(folder, 0)
    assert not any(done.exit_codes), done.errors
    return done.lines


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_have_the_values_of_one(case: str, folder: Path) -> None:
    """The bits of eager construction on that rank, as the worker asserts on each rank."""
    assert all(case in printed for printed in lines(folder))


def test_every_way_to_shard(folder: Path) -> None:
    for printed in lines(folder):
        assert len([line for line in printed if line.startswith("way: ")]) == 15


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_on_all_ranks(name: str, folder: Path) -> None:
    """With nothing changed, as the worker asserts."""
    for printed in lines(folder):
        (line,) = [line for line in printed if line.startswith(f"refused: {name}: ")]
        assert re.match(REFUSED[name], line.removeprefix(f"refused: {name}: ")), line


def test_a_failure_while_values_are_sent_is_raised_on_all_ranks(folder: Path) -> None:
    for rank, printed in enumerate(lines(folder)):
        found = [line for line in printed if line.startswith("failed: ")]
        kind = "ReplayError" if rank == 0 else "MaterializeError: rank 0 failed"
        assert [line.startswith(f"failed: {kind}") for line in found] == [True, True], found
        assert all("no memory" in line for line in found)


def test_a_rank_that_dies(folder: Path) -> None:
    """The others get an error from the process group, within its timeout."""
    done = finished(folder, 1)
    assert done.exit_codes == [0, -9, 0], done.errors
    for rank in (0, 2):
        assert done.lines[rank][0] in ("dies: RuntimeError", "dies: DistBackendError")
