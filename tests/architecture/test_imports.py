"""What may be imported, printed and kept: the rules of the package as a whole.

That imports run one way, and without cycles, are contracts of import-linter in pyproject.toml;
``nox -s lint`` checks them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import torchfake

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "torchfake"
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

MAY_PRINT = {"cli/commands.py", "cli/init.py", "cli/output.py"}
MAY_HOLD_STATE = {
    "_core/modes.py",
    "inspect/memory/small_heap.py",  # how often the process's one collector was told to ignore
}
MAY_IMPORT = {
    "inspect/targets/hub.py": {"huggingface_hub"},
    "_files/load.py": {"safetensors"},
    "_files/file_plan.py": {"huggingface_hub"},
    "_files/transformers_checkpoints.py": {"transformers"},
    "_materialize/progress.py": {"tqdm"},
    "cli/commands.py": {"typer"},
    "cli/help.py": {"typer"},
    "cli/init.py": {"typer"},
    "cli/options.py": {"typer"},
    "cli/output.py": {"rich", "typer"},
    "cli/plan.py": {"typer"},
    "cli/serve.py": {"typer"},
    "inspect/records/record.py": {"pandas"},
    "inspect/steps/adapters.py": {"peft"},
    "inspect/steps/trainer_loop.py": {"accelerate", "transformers"},
    "_progress.py": {"tqdm"},
    "inspect/inputs/labels.py": {"transformers"},
    "inspect/serving/caches.py": {"transformers"},
    "inspect/figures/plotly_figures.py": {"plotly"},
    "inspect/show/terminal.py": {"rich"},
    "inspect/targets/transformers_models.py": {"transformers", "huggingface_hub"},
}

NEVER_AT_IMPORT = (
    *("transformers", "diffusers", "accelerate", "safetensors", "rich", "typer"),
    *("hypothesis", "expecttest", "pytest", "torch.testing._internal"),
    *("torch._dynamo", "torch._inductor", "torch.distributed.tensor"),
)

NOT_FOR_LAYERS = (
    *("torchfake._replay.replay", "torchfake._recording.graph_text", "torchfake.deferred"),
    *("torchfake._recording.eager.register", "torchfake._operators.cuda.register"),
    *("torchfake.inspect", "torchfake.distributed", "torchfake._materialize"),
)
"""Milliseconds to import, for which a program that only builds layers has no use."""


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


def calls(file: str) -> list[str]:
    return [ast.unparse(n.func) for n in ast.walk(tree_of(file)) if isinstance(n, ast.Call)]


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


def is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def module_of(file: str) -> str:
    return ".".join(["torchfake", *Path(file).with_suffix("").parts]).removesuffix(".__init__")


MODULES = {module_of(file): file for file in FILES}


def imported_at_any_time(file: str) -> set[str]:
    """The files that a file imports, when it is imported itself or in a function of its own."""
    names: set[str] = set()
    waiting: list[ast.AST] = [tree_of(file)]
    while waiting:
        node = waiting.pop()
        waiting += node.orelse if is_for_checkers(node) else ast.iter_child_nodes(node)
        names.update(imported_names(node))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names.update(arg.value for arg in node.args if isinstance(arg, ast.Constant))
    return {name if name in MODULES else name.rpartition(".")[0] for name in names} & {*MODULES}


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Imports in functions count. A file that imports one of its own package imports that package
    first; as this holds for every file, it is left out here.
    """
    above = {module: imported_at_any_time(file) - {module} for module, file in MODULES.items()}
    while leaves := [module for module, others in above.items() if not others]:
        for module in leaves:
            del above[module]
        for others in above.values():
            others.difference_update(leaves)
    while roots := above.keys() - set().union(*above.values()):
        for module in roots:
            del above[module]
    assert not above, f"in a circle, or between two: {sorted(above)}"


HAVE_CODE = {
    "_torch/__init__.py",  # refuses an old torch, before its files ask for what that lacks
    "_operators/meta_kernels/__init__.py",  # docs/adding_an_op.md imports a name from there
}


@pytest.mark.parametrize("file", [f for f in FILES if re.search(r"(^|/)_\w+/.*__init__.py$", f)])
def test_the_page_of_a_private_package_has_no_code(file: str) -> None:
    """So who imports one file of it imports no other one by that."""
    assert (len(tree_of(file).body) == 1) is (file not in HAVE_CODE)


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
    assert "torchfake.inspect" not in added


def test_a_program_that_builds_layers_imports_nothing_that_it_has_no_use_for() -> None:
    program = (
        "import sys, torch, torchfake\n"
        "with torchfake.fake_mode():\n"
        "    torch.nn.Linear(4, 4)(torch.randn(2, 4)).sum().backward()\n"
        f"print([name for name in {NOT_FOR_LAYERS} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("inspect", "--help")])
def test_the_help_of_the_command_needs_no_torch(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "torchfake", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torchfake.cli.commands" in imported
    assert not imported & {"torch", "numpy", "rich.console", "torchfake.inspect"}


def test_public_names_are_known_to_type_checkers_and_at_run_time() -> None:
    """Once as imports that only they read, and once in the table of what is imported when."""
    (block,) = [node for node in tree_of("__init__.py").body if isinstance(node, ast.If)][:1]
    read_by_checkers = {
        alias.asname: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    table = {name: f"torchfake.{home}" for home, ns in torchfake._NAMES.items() for name in ns}
    assert read_by_checkers.keys() == table.keys()
    assert all(read_by_checkers[name].startswith(home) for name, home in table.items())
    assert table.keys() | {"errors"} == set(torchfake.__all__)
    assert set(torchfake.__all__) <= set(dir(torchfake))
    assert all(hasattr(torchfake, name) for name in torchfake.__all__)


def test_planning_is_imported_when_it_is_first_used() -> None:
    script = (
        "import sys, torchfake; assert 'torchfake.distributed' not in sys.modules;"
        "assert {'plan', 'distributed'} <= set(dir(torchfake));"
        "assert torchfake.plan is torchfake.distributed.plan;"
        "from torchfake import plan; assert callable(plan);"
        "assert not hasattr(torchfake, 'plam')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_deferring_is_imported_when_it_is_first_used() -> None:
    """``meta_init`` is the name of a class and of the file that defines it: it stays the class."""
    script = (
        "import sys, torchfake; assert 'torchfake._materialize' not in sys.modules;"
        "assert 'torchfake.deferred' not in sys.modules;"
        "import torchfake.meta_init; assert isinstance(torchfake.meta_init, type);"
        "from torchfake import meta_init; assert meta_init is torchfake.meta_init;"
        "assert sys.modules['torchfake.meta_init'].meta_init is meta_init;"
        "assert torchfake.deferred.deferred_init is torchfake.deferred_init;"
        "assert torchfake.checkpoint.save_materialized is torchfake.save_materialized;"
        "from torchfake import *; assert issubclass(meta_init, deferred_mode)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_deferring_is_imported_inside_a_mode() -> None:
    """What is read of torch then is torch's own."""
    script = (
        "import torch, torchfake\n"
        "with torchfake.fake_mode():\n"
        "    layer = torchfake.deferred_init(torch.nn.Linear, 2, 3)\n"
        "assert not torchfake.is_fake(torchfake.materialize_module(layer).weight)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
