"""Compiles the stand-in for CUDA, and runs a Python program in front of which it is loaded.

Input: the name of a module with a main program. Output: what it prints, read as JSON. A C compiler
and torch built with CUDA are needed; no GPU, and no header of CUDA.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
SOURCES = ("runtime.c", "kernels.c", "libraries.c")
_LIBRARIES = (
    "libc10_cuda.so",
    "libtorch_cuda.so",
    "libtorch_cuda_linalg.so",
    "libtorch_python.so",
    "libcaffe2_nvrtc.so",
)
_OF_CUDA = re.compile(r"^(__cuda|cuda|cublas|cudnn|cufft|cusolver|cusparse|nvrtc|cu[A-Z])(?!File)")
_REAL = re.compile(r"^cuFile|Version$|Property$|ErrorString$|ErrorName$|^cudaError")
"""What needs no device: the libraries' own answer."""


def run_with_cuda(module: str, given: Any, *, gpu_major: int = 8, has_memory: bool = True) -> Any:
    """What a worker says, as JSON, who is given `given` on a machine that seems to have a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment(folder, gpu_major, has_memory)
        command = [sys.executable, "-m", module, "--worker"]
        done = subprocess.run(
            command, input=json.dumps(given), env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def run_each_with_cuda(
    module: str, number: int, words: Callable[[int], list[str]], *, seconds: float
) -> dict[str, str]:
    """What a worker prints of `number` items, in lines of JSON: the item, a name and a result. The
    worker is started anew behind an item that ends its process, of which the rest is left out.

    Args:
        module: the worker's.
        number: how many items there are.
        words: its arguments, to begin with an item.
        seconds: after which it is ended.
    """
    found: dict[str, str] = {}
    first = 0
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment(folder, 8, True)
        while first < number:
            command = [sys.executable, "-m", module, *words(first)]
            try:
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=seconds
                ).stdout
            except subprocess.TimeoutExpired as error:
                done = (error.stdout or b"").decode()
            printed = (line for line in done.splitlines() if line[:1] == "[" and line[-1:] == "]")
            lines = [json.loads(line) for line in printed]
            found.update({name: result for _, name, result in lines if name})
            first = 1 + max([first, *(item for item, _, _ in lines)])
    return found


def _environment(folder: str, gpu_major: int, has_memory: bool) -> dict[str, str]:
    """The environment of a program that sees the stand-in, compiled into a folder."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": folder,
        "LD_PRELOAD": str(compile_into(Path(folder))),
        "FAKE_GPU_MAJOR": str(gpu_major),
    }
    if has_memory:
        environment["FAKE_GPU_HAS_MEMORY"] = "1"
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(name, None)
    return environment


def compile_into(folder: Path) -> Path:
    """The library, as ``libcuda.so.1``; NVML is the same under another name."""
    library = folder / "libcuda.so.1"
    own = folder / "own.so"
    sources = [str(HERE / name) for name in SOURCES]
    _compile(sources, own)
    stubs = folder / "stubs.c"
    stubs.write_text(_stubs(_symbols(own, "--defined-only")))
    _compile([*sources, str(stubs)], library)
    (folder / "libnvidia-ml.so.1").symlink_to(library)
    return library


def _compile(sources: list[str], library: Path) -> None:
    command = ["cc", "-shared", "-fPIC", "-O1", "-w", *sources, "-o", str(library)]
    subprocess.run(command, check=True)


def _stubs(defined: set[str]) -> str:
    """A definition of all else that torch's libraries call: it succeeds. What creates something
    gives it a number.
    """
    folder = Path(torch.__file__).parent / "lib"
    wanted: set[str] = set()
    for name in _LIBRARIES:
        wanted |= _symbols(folder / name, "--undefined-only")
    names = sorted(n for n in wanted - defined if _OF_CUDA.match(n) and not _REAL.search(n))
    made = [
        f"int {name}(void **p) {{ static long n; *p = (void *)(n += 16); return 0; }}"
        if "Create" in name
        else f"int {name}(void) {{ return 0; }}"
        for name in names
    ]
    return "\n".join([*made, ""])


def _symbols(library: Path, which: str) -> set[str]:
    done = subprocess.run(
        ["nm", "-D", which, str(library)], check=True, capture_output=True, text=True
    )
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}
