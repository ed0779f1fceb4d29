"""Programs interrupted at some of their points: afterwards torch is as before, and modes work.

``python -m tests.interrupts.sweep`` goes through all points, of more programs.
"""

from __future__ import annotations

import pytest

from tests.interrupts import torch_state
from tests.interrupts.programs import MODES, USES
from tests.interrupts.sweep import num_points, outcome_at

NUM_POINTS = 12  # of each program; all of the first and last ones, where modes are entered and left
IN_SUITE = MODES | {name: USES[name] for name in ("materialized", "known_values", "after_the_mode")}


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("name", IN_SUITE)
def test_interrupted_at_any_point(name: str) -> None:
    program = IN_SUITE[name]
    program()
    torch_state.failures_afterwards()
    total = num_points(program)
    before = torch_state.snapshot()
    points = {*range(8), *range(total - 8, total), *range(8, total, max(1, total // NUM_POINTS))}
    outcomes = [outcome_at(program, point, before) for point in sorted(points)]
    failed = [outcome for outcome in outcomes if outcome.failures]
    tried = sum(bool(outcome.point) for outcome in outcomes)
    print(f"points tried: {tried}, held: {tried - len(failed)}")
    assert not failed
    assert tried > NUM_POINTS
    assert name == "with_exit_stack" or not any(outcome.is_late for outcome in outcomes)
