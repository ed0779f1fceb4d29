"""Runs programs on torch's own caching allocator, where torch is built with CUDA and there is no
GPU: ``tests/cuda_stand_in`` stands in for CUDA's runtime.

    python -m tests.inspect.allocator.worker_torch_allocator    compare PROGRAMS and 440 others
    ... worker_torch_allocator --record                         and write recorded.json

Each program runs in a fork of a process that has imported torch and not begun to use CUDA.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.cuda_stand_in.build import run_with_cuda
from tests.inspect.allocator.programs import PROGRAMS, Program, State, run_model

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"


def digest(states: list[State]) -> str:
    """Of all states, in order."""
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()[:16]


def record_of(states: list[State]) -> list[Any]:
    """What is kept of the states: the most reserved, the most allocated, failures, the digest."""
    _, reserved, allocated = zip(*states, strict=True)
    failures = sum(address == -1 for address, _, _ in states)
    return [max(reserved), max(allocated), failures, digest(states)]


def run_torch(programs: list[Program]) -> list[list[State]]:
    """The states of torch's allocator, for each program."""
    module = "tests.inspect.allocator.worker_torch_allocator"
    done = run_with_cuda(module, programs, has_memory=False)
    return [[tuple(state) for state in states] for states in done]


def _worker() -> None:
    import torch

    results = []
    for fields in json.load(sys.stdin):
        reader, writer = os.pipe()
        if os.fork() == 0:
            with os.fdopen(writer, "w") as out:
                json.dump(_states(torch, Program(*fields)), out)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as text:
            results.append(json.load(text))
        os.wait()
    json.dump(results, sys.stdout)


def _states(torch: Any, program: Program) -> list[State]:
    from torchfake.inspect.allocator.device_memory import FIRST_ADDRESS

    os.environ["FAKE_GPU_BYTES"] = str(program.capacity_mib << 20)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = program.settings
    torch._C._accelerator_setAllocatorSettings(program.settings)
    busy = ctypes.c_int.in_dll(ctypes.CDLL(None), "fake_gpu_busy")
    assert torch.cuda.is_available(), "the stand-in is not in front of CUDA's runtime"
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    tensors: dict[int, Any] = {}
    states: list[State] = []
    for op in program.ops():
        address = 0
        if op[0] == "allocate":
            try:
                with torch.cuda.stream(streams[op[3]]):
                    tensors[op[1]] = torch.empty(op[2], dtype=torch.uint8, device="cuda")
                address = tensors[op[1]].data_ptr() - FIRST_ADDRESS
            except torch.OutOfMemoryError:
                address = -1
        elif op[0] == "free":
            tensors.pop(op[1], None)
        elif op[0] == "record_stream" and op[1] in tensors:
            tensors[op[1]].record_stream(streams[op[2]])
        elif op[0] == "busy":
            busy.value = op[1]
        elif op[0] == "empty_cache":
            torch.cuda.empty_cache()
        reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
        states.append((address, reserved, allocated))
    return states


def _main() -> None:
    more = [p._replace(seed=100 + seed) for p in PROGRAMS[::3] for seed in range(20)]
    programs = [*PROGRAMS, *more]
    ours = [run_model(program)[0] for program in programs]
    theirs = run_torch(programs)
    differing = [p for p, a, b in zip(programs, ours, theirs, strict=True) if a != b]
    for program, a, b in zip(programs, ours, theirs, strict=True):
        if a != b:
            first = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
            print(program, "differs at", first, program.ops()[first], a[first], b[first])
    print(f"{len(programs) - len(differing)} of {len(programs)} programs are equal in every state")
    if "--record" in sys.argv:
        recorded = [record_of(states) for states in theirs[: len(PROGRAMS)]]
        RECORDED.write_text("[\n" + ",\n".join(map(json.dumps, recorded)) + "\n]\n")
    sys.exit(bool(differing))


if __name__ == "__main__":
    _worker() if "--worker" in sys.argv else _main()
