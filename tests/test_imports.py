"""The arrow: files import only files above them in the list of docs/design.md.

Also who may print, who may hold ambient state, and what ``import torchfake`` may import.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "torchfake"
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

FACES = {"__init__.py", "distributed/__init__.py", "inspect/__init__.py"}
"""Public faces: lists of names, which may import from anywhere below them."""

LATE = {
    ("_patches.py", "_patch_autocast.py"): "replacements are records of _patches, collected there",
    ("_patches.py", "_patch_sources.py"): "the same",
    ("_patches.py", "_patch_devices.py"): "the same",
    ("_patches.py", "_patch_cuda.py"): "the same",
    ("inspect/targets.py", "inspect/hf.py"): "only a transformers target imports transformers",
    ("inspect/shown.py", "inspect/text.py"): "a record is shown by those below it, when asked",
    ("inspect/shown.py", "inspect/terminal.py"): "the same",
    ("inspect/shown.py", "inspect/html.py"): "the same",
    ("inspect/shown.py", "inspect/figures.py"): "the same",
}
"""Imports inside functions that point down the list, and why."""

MAY_PRINT = {"cli.py", "__main__.py"}
MAY_HOLD_STATE = {"_state.py", "_patches.py"}
MAY_IMPORT = {
    "_load.py": {"safetensors"},
    "_progress.py": {"tqdm"},
    "_transformers.py": {"transformers"},
    "checkpoint.py": {"huggingface_hub"},
    "cli.py": {"rich", "typer"},
    "inspect/figures.py": {"plotly"},
    "inspect/hf.py": {"transformers", "huggingface_hub"},
    "inspect/report.py": {"plotly"},
    "inspect/shown.py": {"pandas"},
    "inspect/terminal.py": {"rich"},
}

NEVER_AT_IMPORT = (
    *("transformers", "diffusers", "accelerate", "safetensors", "rich", "typer"),
    *("hypothesis", "expecttest", "pytest", "torch.testing._internal"),
    *("torch._dynamo", "torch._inductor", "torch.distributed.tensor"),
)


@cache
def listed() -> list[str]:
    """The files in the order of docs/design.md."""
    page = (ROOT / "docs" / "design.md").read_text()
    layout = re.search(r"## Layout\n.*?```text\n(.*?)```", page, re.DOTALL)
    assert layout is not None, "docs/design.md has no list under '## Layout'"
    return re.findall(r"^\s*((?:inspect/|distributed/)?\w+\.py)\b", layout.group(1), re.MULTILINE)


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text())


def imported_names(node: ast.AST) -> list[str]:
    """Dotted names an import statement may mean: ``from a import b`` is ``a.b``."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def file_of(name: str) -> str | None:
    """The file of ours that a dotted name lies in."""
    parts = name.split(".")
    if parts[0] != "torchfake":
        return None
    for length in range(len(parts), 1, -1):
        inner = "/".join(parts[1:length])
        for file in (f"{inner}.py", f"{inner}/__init__.py"):
            if file in FILES:
                return file
    return "__init__.py"


def imports_of(file: str) -> Iterator[tuple[str, bool]]:
    """The files that `file` imports, and whether it does so when it is itself imported."""
    tree = tree_of(file)
    for node in ast.walk(tree):
        for name in imported_names(node):
            target = file_of(name)
            if target is not None:
                yield target, node in tree.body


def calls(file: str) -> list[str]:
    return [ast.unparse(n.func) for n in ast.walk(tree_of(file)) if isinstance(n, ast.Call)]


def test_the_list_is_the_package() -> None:
    assert sorted(listed()) == FILES, "docs/design.md: list every file, in the order data flows"


@pytest.mark.parametrize("file", FILES)
def test_imports_point_up(file: str) -> None:
    if file in FACES:
        return
    above = set(listed()[: listed().index(file)]) | FACES
    for target, at_import in imports_of(file):
        if at_import or (file, target) not in LATE:
            assert target in above, f"{file} imports {target}, which is below it in docs/design.md"


def test_late_imports_are_all_in_use() -> None:
    for file, target in LATE:
        assert (target, False) in list(imports_of(file))


@pytest.mark.parametrize("file", FILES)
def test_the_package_needs_torch_and_numpy_only(file: str) -> None:
    allowed = (
        sys.stdlib_module_names | {"torch", "numpy", "torchfake"} | MAY_IMPORT.get(file, set())
    )
    for node in ast.walk(tree_of(file)):
        for name in imported_names(node):
            assert name.split(".")[0] in allowed, f"{file} imports {name}"


@pytest.mark.parametrize("file", FILES)
def test_only_the_command_line_prints(file: str) -> None:
    speaks = [c for c in calls(file) if c == "print" or re.match(r"sys\.std(out|err)\.write", c)]
    assert file in MAY_PRINT or not speaks


@pytest.mark.parametrize("file", FILES)
def test_only_one_file_holds_ambient_state(file: str) -> None:
    if file in MAY_HOLD_STATE:
        return
    nodes = list(ast.walk(tree_of(file)))
    assert not any(isinstance(node, ast.Global) for node in nodes)
    names = {ast.unparse(n) for n in nodes if isinstance(n, (ast.Attribute, ast.Name))}
    assert not names & {"threading.local", "ContextVar", "contextvars.ContextVar"}


def test_importing_torchfake_is_cheap() -> None:
    """What it adds to ``import torch`` is itself; the time is in tests/bench."""
    script = (
        "import sys, torch; before = set(sys.modules); import torchfake; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    added = done.stdout.split()
    assert "torchfake" in added
    for name in NEVER_AT_IMPORT:
        hits = [module for module in added if module == name or module.startswith(name + ".")]
        assert not hits, f"import torchfake imports {hits[:3]}"
    assert "torchfake.cli" not in added
