"""Records that were pickled before their classes moved still load."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys

import pytest

from torchfake import profiles
from torchfake.distributed import moved as plans_moved
from torchfake.inspect import ExampleInputs, Size, TensorSpec
from torchfake.inspect.records import moved as inspect_moved

H100 = profiles()["h100-80gb"]
OLD = {
    "profile": (H100, "torchfake._core.gpu_profiles", "torchfake._cuda"),
    "spec": (
        TensorSpec((2,), "float32", "cpu"),
        "torchfake.inspect.records.tensor_specs",
        "torchfake.inspect.specs",
    ),
    "spec in describe": (
        TensorSpec((2,), "float32", "cpu"),
        "torchfake.inspect.records.tensor_specs",
        "torchfake.inspect.describe.tensor_specs",
    ),
    "size": (Size(), "torchfake.inspect.contents.tree", "torchfake.inspect.tree"),
    "inputs": (
        ExampleInputs.__new__(ExampleInputs),
        "torchfake.inspect.inputs.example_inputs",
        "torchfake.inspect.inputs",
    ),
}


@pytest.mark.parametrize("name", OLD)
def test_the_old_name_loads(name: str) -> None:
    """A pickle (of protocol 0, whose names are text) loads in a process without torchfake."""
    record, now, then = OLD[name]
    old = pickle.dumps(record, protocol=0).replace(f"c{now}\n".encode(), f"c{then}\n".encode())
    assert then.encode() in old
    program = (
        "import pickle, sys; found = pickle.load(sys.stdin.buffer);"
        "sys.stdout.buffer.write(pickle.dumps(found, protocol=0))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=old, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert pickle.loads(done.stdout) == record


MOVED = {
    f"torchfake.{package}.{old}": f"torchfake.{package}.{new}"
    for package, homes in (("inspect", inspect_moved.HOMES), ("distributed", plans_moved.HOMES))
    for old, new in homes.items()
}


@pytest.mark.parametrize("old", MOVED)
def test_a_module_that_has_moved_has_its_classes(old: str) -> None:
    home, then = importlib.import_module(MOVED[old]), sys.modules[old]
    classes = [each for each in vars(home).values() if isinstance(each, type)]
    own = [each for each in classes if each.__module__ == home.__name__]
    assert own
    assert all(getattr(then, each.__name__) is each for each in own)
    assert not hasattr(then, "__file__")
