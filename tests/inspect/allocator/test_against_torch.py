"""The model against torch's own allocator: what that did with the same programs is recorded.

``worker_torch_allocator`` runs torch's allocator, on a build with CUDA, and records it; the nox session
``allocator`` compares anew, in every state.
"""

from __future__ import annotations

import json

import pytest

from tests.inspect.allocator.programs import PROGRAMS, Program, run_model
from tests.inspect.allocator.worker_torch_allocator import RECORDED, record_of

EXPECTED = dict(zip(PROGRAMS, json.loads(RECORDED.read_text()), strict=True))


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_every_address_and_every_count_is_that_of_torch(program: Program) -> None:
    assert record_of(run_model(program)[0]) == EXPECTED[program]


def test_the_programs_reach_what_is_rare() -> None:
    failures = sum(failures for _, _, failures, _ in EXPECTED.values())
    retries = sum(run_model(program)[1].num_retries for program in PROGRAMS)
    assert failures > 20
    assert retries > 20
