"""What reads memory past the dispatcher: numpy, dlpack, ctypes, safetensors, other processes.

Each probe of the worker ends in eager's value or in a Python exception; none in a fault. Probes run
in a process of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("worker_memory_readers.py")


@cache
def all_outcomes() -> dict[tuple[str, str], Any]:
    """What each probe gave, by the kind of tensor and its name."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests._tensor.{WORKER.stem}"],
        capture_output=True, text=True, timeout=500, check=False, cwd=WORKER.parents[2],
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert done.returncode == 0, f"{rows[-1]} ended the process: {done.stderr[-2000:]}"
    return {(row[0], row[1]): row[2] for row in rows if len(row) == 3}


def outcomes(kind: str) -> dict[str, Any]:
    return {name: outcome for (k, name), outcome in all_outcomes().items() if k == kind}


REFUSED = {
    "pickle", "torch.save", "copy", "checkpoint",  # RecordError: the record would be lost
    "array interface", "from_address", "void pointer",  # these want an int
    "to_dlpack", "_to_dlpack", "C++ tolist", "C++ numpy", "map_",  # torch refuses a subclass
    "all_reduce", "all_reduce of the backend",
    "to_mkldnn", "to_sparse", "sparse_coo_tensor", "sparse_csr_tensor", "nested", "quantize",
    "jit.trace",
}  # fmt: skip
"""Of deferred tensors: what has no value before they are materialized."""

NO_ADDRESS = {"C++ address"}  # null, where torch does not ask Python


@pytest.mark.parametrize("where", ["inside", "out"])
def test_deferred_tensors_give_the_values_of_eager(where: str) -> None:
    expected, found = outcomes("eager out"), outcomes(f"deferred {where}")
    for name, outcome in expected.items():
        if outcome[0] == "value" and found[name][0] == "value" and name not in NO_ADDRESS:
            assert found[name] == outcome, name
    refused = {
        name for name, o in found.items() if o[0] == "error" and expected[name][0] != "error"
    }
    assert refused <= REFUSED


NAMES_THE_REMEDY = {
    "numpy", "np.asarray", "np.array", "np.from_dlpack", "memoryview", "string_at", "cast",
    "address of the storage", "address of storage()", "address of a view", "memmove", "struct",
    "safetensors save", "safetensors save_file", "safetensors save_model", "save_pretrained",
    "file descriptor", "shared file", "_write_file", "image", "an index",
}  # fmt: skip


@pytest.mark.parametrize("where", ["inside", "out"])
def test_plain_fakes_are_refused_with_the_remedy(where: str) -> None:
    found = outcomes(f"fake {where}")
    for name in NAMES_THE_REMEDY & found.keys():
        if where == "inside" and found[name][0] == "value":
            continue  # its value is known
        assert found[name][0] == "error", name
        assert "torchfake.is_fake(tensor)" in found[name][2], found[name]
