"""Collectives on deferred tensors, on two processes."""

from __future__ import annotations

import pytest

from tests._recording.worker_collectives import CASES
from tests.ranks import Finished, Launch, finished, once_per_session, run_launches

WORKER = Launch("tests._recording.worker_collectives", 2)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """What both ranks have left."""
    folder = once_per_session(tmp_path_factory, "collectives", lambda f: run_launches([WORKER], f))
    return finished(folder, 0)


@pytest.mark.parametrize("name", [case.__name__ for case in CASES])
def test_as_in_eager(name: str, done: Finished) -> None:
    assert all(name in lines for lines in done.lines), done.errors
