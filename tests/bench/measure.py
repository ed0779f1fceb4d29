"""How long, and how much memory: medians in this process, peaks in a fresh one."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
import timeit
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
            result = run()
            seconds[name].append(time.perf_counter() - start)
            del result  # not counted either: giving memory back
    return {name: statistics.median(values) for name, values in seconds.items()}


def per_call(statement: str, names: dict[str, Any], calls: int) -> float:
    """Mean microseconds of one `statement`, after some that are not counted."""
    timer = timeit.Timer(statement, globals=names)
    timer.timeit(20)
    return timer.timeit(calls) / calls * 1e6


def place_of(code: Any) -> str:
    """A function in a profile: its name, and the file where it has one."""
    if isinstance(code, str):
        return code.removeprefix("<").removesuffix(">").split(" of ")[0]
    folder, name = os.path.split(code.co_filename)
    return f"{os.path.basename(folder)}/{name}: {code.co_name}"


_EACH = """
import resource, torch, torchfake
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
with torchfake.fake_mode():
    x = torch.empty(3, 4)
    kept = [{make} for i in range(100)]
    kept += [None] * {count}
    before = resident()
    for i in range({count}):
        kept[i] = {make}
    print((resident() - before) / {count})
"""


def bytes_each(make: str, *, cached: bool, count: int = 40_000) -> float:
    """The rise of a fresh process's resident memory for each of many fakes that are kept."""
    code = _EACH.format(make=make, count=count)
    env = {**os.environ, "TORCHFAKE_CACHE": str(int(cached))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


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
