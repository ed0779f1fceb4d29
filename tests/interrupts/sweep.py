"""Every program, interrupted at every point: ``python -m tests.interrupts.sweep``.

It prints the points tried and held for each program, and exits with 1 if one did not hold.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import Any, NamedTuple

import torch

from tests.interrupts import torch_state
from tests.interrupts.injection import EVENTS, Injector
from tests.interrupts.programs import MODES, USES, Program


class Outcome(NamedTuple):
    """What an interrupt at one point has led to."""

    point: str  # where it was; empty if the program has no such point this time
    failures: list[str]
    is_late: bool  # torch was restored only when the traceback, which holds the mode, was freed


def num_points(program: Program, events: frozenset[str] = EVENTS) -> int:
    """How many points the program has, once all its caches are full."""
    for _ in range(2):
        counter = Injector(events=events)
        counter.run(program)
    return counter.num_events


def outcome_at(
    program: Program, number: int, before: Any, events: frozenset[str] = EVENTS
) -> Outcome:
    """Interrupt `program` at one point."""
    torch.manual_seed(5)
    injector = Injector(number, events=events)
    error = injector.run(program)
    if not injector.point:
        return Outcome("", [], False)
    kind, error = type(error), None
    came_out = kind is KeyboardInterrupt or (kind is type(None) and injector.is_dropped)
    failures = [] if came_out else [f"{kind.__name__} came out"]
    is_late = bool(torch_state.differences(before))
    if is_late:
        gc.collect()
    failures += torch_state.differences(before)
    if not failures:
        failures += torch_state.failures_afterwards() + torch_state.differences(before)
    return Outcome(injector.point, failures, is_late)


def sweep(program: Program, events: frozenset[str], stride: int) -> list[Outcome]:
    """Interrupt `program` at every `stride`-th point, up to the first that does not hold."""
    program()
    torch_state.failures_afterwards()
    total = num_points(program, events)
    before = torch_state.snapshot()
    outcomes: list[Outcome] = []
    for number in range(0, total, stride):
        outcomes.append(outcome_at(program, number, before, events))
        if outcomes[-1].failures:
            break
    return [outcome for outcome in outcomes if outcome.point]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of programs; all, if none is given")
    parser.add_argument("--stride", type=int, default=1, help="every so many points")
    parser.add_argument("--lines", action="store_true", help="lines only, not bytecodes")
    options = parser.parse_args()
    events = frozenset({"line"}) if options.lines else EVENTS
    num_tried = num_held = num_late = 0
    for name, program in {**MODES, **USES}.items():
        if options.names and name not in options.names:
            continue
        start = time.perf_counter()
        outcomes = sweep(program, events, options.stride)
        tried, held = len(outcomes), sum(not outcome.failures for outcome in outcomes)
        late = sum(outcome.is_late and not outcome.failures for outcome in outcomes)
        seconds = time.perf_counter() - start
        print(f"{name}: points tried: {tried}, held: {held} ({late} late), {seconds:.0f} s")
        for outcome in outcomes:
            if outcome.failures:
                print(f"    {outcome.point}: {outcome.failures}")
        sys.stdout.flush()
        num_tried, num_held, num_late = num_tried + tried, num_held + held, num_late + late
    print(f"points tried: {num_tried}, held: {num_held} ({num_late} late)")
    return num_tried != num_held


if __name__ == "__main__":
    sys.exit(main())
