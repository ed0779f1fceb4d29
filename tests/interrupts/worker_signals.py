"""Real signals at random moments, in a process of its own: prints how many were tried, and held."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
import traceback
import types
from typing import Any

import torch
from torch.autograd import grad_mode

from tests.interrupts import torch_state
from tests.interrupts.programs import MODES


def main(num_signals: int, seed: int) -> int:
    rng = random.Random(seed)
    programs = list(MODES.values())
    for program in programs:
        program()
    torch_state.failures_afterwards()
    before = torch_state.snapshot()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    tried = held = 0
    while tried < num_signals:
        program = rng.choice(programs)
        start = time.perf_counter()
        program()
        seconds = time.perf_counter() - start
        came_out = interrupted(program, rng.uniform(1e-6, seconds))
        if came_out is None:
            continue  # the program was faster
        found = [] if type(came_out) is KeyboardInterrupt else [f"{came_out!r} came out"]
        came_out = None
        if torch_state.differences(before):
            gc.collect()  # what is in a cycle with a traceback holds the mode until then
        found += torch_state.differences(before) or torch_state.failures_afterwards()
        tried, held = tried + 1, held + (not found)
        if found:
            print(program.__name__, found)
            break
    print(f"signals tried: {tried}, held: {held}")
    return tried != held


def interrupted(program: Any, seconds: float) -> BaseException | None:
    """What comes out of `program` if a signal arrives after so many seconds."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        program()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if _arrived_in_grad_mode_of_torch(error.__traceback__):
            torch.set_grad_enabled(True)
            return None
        return error.with_traceback(None)
    return None


def _arrived_in_grad_mode_of_torch(trace: types.TracebackType | None) -> bool:
    """Whether torch's own code was about to leave ``torch.no_grad()``, which then stays on without
    fakes too.
    """
    callers = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)][-2:]
    in_torch = os.path.dirname(torch.__file__)
    return callers[-1] == grad_mode.__file__ and callers[0].startswith(in_torch)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
