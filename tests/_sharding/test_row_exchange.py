"""Shards of columns made of rows that ranks exchange have the bits of eager slices.

The worker asserts values and generators on each rank, and prints how many were exchanged.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks import Launch, finished, once_per_session, run_launches

LAUNCHES = [Launch("tests._sharding.worker_exchange", 2)]
CASES = Launch("tests._sharding.worker_exchange_cases", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once_per_session(
        tmp_path_factory, "exchange", lambda f: run_launches([*LAUNCHES, CASES], f)
    )


@pytest.mark.parametrize("number", range(len(LAUNCHES)))
def test_columns_are_exchanged_and_rows_are_not(number: int, folder: Path) -> None:
    lines = finished(folder, number).printed()
    counts = dict(line.split(": ") for line in lines if not line.startswith("refused"))
    assert counts["fsdp along the last dimension"] == "5 5"
    assert counts["tensor parallel"] == "2 2"
    assert counts["fsdp"] == "0 0"


@pytest.mark.parametrize("number", range(len(LAUNCHES)))
def test_ranks_that_would_wait_for_each_other_are_refused(number: int, folder: Path) -> None:
    """One rank without ``exchange``, and one that has chosen fewer parameters."""
    refused = [x for x in finished(folder, number).printed() if x.startswith("refused")]
    assert len(refused) == 2
    assert "rows of embed.weight are not exchanged" in refused[0]
    assert "embed.weight is missing" in refused[1]


def test_other_dtypes_a_checkpoint_and_an_interrupt(folder: Path) -> None:
    """The worker asserts bits. Where a rank stops, all ranks of its group raise, none waits, and
    the same call goes on afterwards.
    """
    assert finished(folder, len(LAUNCHES)).printed() == [
        "bfloat16: equal",
        "cast: equal",
        "checkpoint: equal",
        "KeyboardInterrupt: ReplayError ReplayError ReplayError KeyboardInterrupt",
        "KeyboardInterrupt, again: equal",
        "ValueError: ReplayError ReplayError ReplayError ValueError",
        "ValueError, again: equal",
    ]
