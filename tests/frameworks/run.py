"""Runs the programs and prints a table: ``python -m tests.frameworks.run [-v] [PATTERN ...]``.

With ``-v`` also what the ranks wrote to stderr, where the outcome is not as expected. With
``--suite`` the cases that the test suite runs, which need no framework but those of the test extra.

One process imports the frameworks and forks two ranks for each run, as ``tests/ranks.py`` does. A
run that has not ended after a minute counts as a hang.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from tests import ranks
from tests.frameworks.program import EQUAL, ERROR, NONE, PLACES, PROGRAMS
from tests.frameworks.worker import SECONDS

NUM_RANKS = 2
FILES_OF_SUITE = ("torch", "accelerate")
FILES = ("torch", "accelerate", "lightning", "transformers", "torchtitan", "deepspeed")

SUITE = {
    "DDP": ("after",),
    "FSDP1, use_orig_params=False": ("after", "forgotten"),
    "pipelining": ("forgotten",),
    "set_model_state_dict, whole": ("after",),
    "set_model_state_dict, broadcast": ("after",),
    "set_model_state_dict, deferred values": ("after",),
    "load_state_dict": ("after",),
    "checkpoint, saved": ("after",),
    "accelerate, FSDP2 with cpu_ram_efficient_loading": ("after", "forgotten"),
}
"""What the test suite runs: where it was once wrong."""


def main(patterns: list[str]) -> int:
    """The number of cells that are not as expected."""
    verbose, in_suite = "-v" in patterns, "--suite" in patterns
    patterns = [pattern for pattern in patterns if not pattern.startswith("-")]
    for name in FILES_OF_SUITE if in_suite else FILES:
        importlib.import_module(f"tests.frameworks.{name}_programs")
    num_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in SUITE if in_suite else PROGRAMS:
            if not patterns or any(pattern.lower() in name.lower() for pattern in patterns):
                places = SUITE[name] if in_suite else PLACES
                num_wrong += run_program(name, places, Path(folder), verbose)
    print(f"{num_wrong} not as expected")
    return num_wrong


def run_program(name: str, places: tuple[str, ...], folder: Path, verbose: bool) -> int:
    """Run a program eagerly, then at some places; print a line for each."""
    print(f"\n{name}")
    num_wrong = 0
    expected = dict(zip(PLACES, PROGRAMS[name].expected, strict=True))
    for place in ("eager", *places):
        if expected.get(place) == NONE:
            continue
        began = time.monotonic()
        lines = run_on_ranks(name, place, folder)
        kinds = {line.partition(":")[0] for line in lines}
        if ERROR in kinds:  # the other rank may have been waiting for this one
            kinds -= {"killed", "lost the other rank"}
        as_expected = kinds == {expected.get(place, EQUAL)}
        num_wrong += not as_expected
        shown = lines[0] if len(set(lines)) == 1 else " | ".join(lines)
        mark = " " if as_expected else "!"
        print(f"{mark} {place:10} {time.monotonic() - began:5.1f} s  {shown}", flush=True)
        if verbose and not as_expected:
            print(max(folder.glob("*.errors"), key=os.path.getmtime).read_text()[-2000:])
        if place == "eager" and not as_expected:
            break
    return num_wrong


def run_on_ranks(name: str, place: str, folder: Path) -> list[str]:
    """What each rank has printed last."""
    launch = ranks.Launch("tests.frameworks.worker", NUM_RANKS, (name, place, str(folder)))
    label = f"{time.monotonic_ns()}"
    with socket.create_server(("localhost", 0)) as server:
        processes = {}
        for rank in range(NUM_RANKS):
            process = os.fork()
            if process == 0:
                os.setpgrp()
                ranks._run_rank(launch, rank, server, folder, label)
            processes[process] = rank
    ends = _wait_for(processes)
    return [_last_line(folder / f"{label}.{rank}", ends[rank]) for rank in range(NUM_RANKS)]


def _wait_for(processes: dict[int, int]) -> dict[int, str]:
    """How each rank ended; those that have not when the time is over are killed."""
    ends: dict[int, str] = {}
    deadline = time.monotonic() + SECONDS
    while processes and time.monotonic() < deadline:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            time.sleep(0.05)
            continue
        code = os.waitstatus_to_exitcode(status)
        ends[processes.pop(process)] = "" if code >= 0 else f"DIED of signal {-code}"
        if code:  # the others may wait for this rank for ever
            deadline = min(deadline, time.monotonic() + 3)
    for process, rank in processes.items():
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        ends[rank] = "killed" if ends else "HANG"
    return ends


def _last_line(path: Path, end: str) -> str:
    lines = [
        line
        for line in path.read_text().splitlines()
        if line.startswith(("equal", "error", "ERROR", "OTHER", "lost"))
    ]
    return lines[-1] if lines else end or "no line"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
