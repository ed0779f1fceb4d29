"""Private APIs of torch are named in _torch/ only, and each name there is called in a test."""

from __future__ import annotations

import ast
import inspect
import types
from pathlib import Path

import pytest

import torchfake
from torchfake._torch import (
    autograd,
    backends,
    contexts,
    cpp_metadata,
    dispatch_keys,
    dispatcher,
    kernels,
    numerics,
    private_facts,
    subclass,
    versions,
    zero_tensors,
)
from torchfake._torch.compiler import (
    frames,
    higher_order,
    python_functions,
    scripts,
    tracer_modes,
)
from torchfake._torch.distributed import dtensors, patches, source_group, training

MODULES = (
    autograd,
    backends,
    contexts,
    cpp_metadata,
    dispatch_keys,
    dispatcher,
    dtensors,
    patches,
    source_group,
    training,
    frames,
    higher_order,
    kernels,
    numerics,
    private_facts,
    python_functions,
    scripts,
    subclass,
    tracer_modes,
    versions,
    zero_tensors,
)
SOURCE = Path(inspect.getfile(torchfake)).parent


def names_defined_in(module: types.ModuleType) -> set[str]:
    """The functions, classes and variables that a module defines; not what it imports."""
    names: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def attributes_in(path: Path) -> set[str]:
    return {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}


def test_every_file_is_listed() -> None:
    files = {path.stem for path in (SOURCE / "_torch").rglob("*.py")} - {"__init__"}
    assert files == {module.__name__.rpartition(".")[2] for module in MODULES}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_is_called(module: types.ModuleType) -> None:
    """A new name in a file of _torch/ needs a test here."""
    public = {name for name in names_defined_in(module) if not name.startswith("_")}
    assert public
    called = set().union(
        *(attributes_in(path) for path in Path(__file__).parent.rglob("test_*.py"))
    )
    assert public <= called, public - called


def test_no_other_file_names_the_private_bindings_of_torch() -> None:
    allowed = {path.name for path in (SOURCE / "_torch").rglob("*.py")}
    naming = {
        path.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr == "_C"
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    }
    assert naming <= allowed, naming - allowed
