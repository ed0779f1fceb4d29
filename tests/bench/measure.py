"""How long, and how much memory: medians in this process, peaks in a fresh one."""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Contender = tuple[str, Callable[[], Any]]


def interleaved(contenders: list[Contender], rounds: int) -> dict[str, float]:
    """Median seconds of each contender, taken in turn so that a slow moment hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name, _ in contenders}
    for _, run in contenders:
        run()  # not counted: imports, caches, first use
    for _ in range(rounds):
        for name, run in contenders:
            gc.collect()
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def per_call(run: Callable[[], Any], rounds: int, calls: int) -> float:
    """Median over rounds of the mean microseconds of one call."""
    for _ in range(20):
        run()
    means = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        means.append((time.perf_counter() - start) / calls)
    return statistics.median(means) * 1e6


_PEAK = """
import json, resource, sys
sys.path.insert(0, {folder!r})
import torch, models, torchfake
models.{warm}
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts anew
{body}
status = open("/proc/self/status").read()
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps(peak - before))
"""


def peak_bytes(folder: str, warm: str, body: str) -> int:
    """The rise of a fresh process's peak memory over `body`, imports done by `warm` first."""
    code = _PEAK.format(folder=folder, warm=warm, body=body)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1]))
