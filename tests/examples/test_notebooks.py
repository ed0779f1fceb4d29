"""Every notebook in examples/, run to its asserts in a kernel of this Python; none has outputs."""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
FIGURE = "application/vnd.plotly.v1+json"
MAX_BYTES = 50_000
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SHOWN = {
    "deferred_init": (1, 0),
    "huge_architecture": (3, 1),
    "migrating_from_torchdistx": (0, 0),
    "will_it_fit": (6, 2),
}
"""By notebook: how many cells show HTML, and how many a figure."""

STATEFUL = ("deferred_init", "migrating_from_torchdistx")
"""Those whose cells change what earlier cells made."""


def read(notebook: Path) -> Any:
    return nbformat.read(notebook, as_version=nbformat.NO_CONVERT)


def code_cells(content: Any) -> list[Any]:
    return [cell for cell in content.cells if cell.cell_type == "code"]


@contextmanager
def kernel(content: Any, folder: Path) -> Iterator[NotebookClient]:
    """A client with a kernel that runs in `folder`: this Python, whatever kernels are installed.

    Sockets are files where the platform has such, so that tests side by side need no ports.
    """
    specs = KernelSpecManager(kernel_dirs=[])  # leaves ipykernel's own, which is sys.executable
    with tempfile.TemporaryDirectory(prefix="kernel-") as sockets:  # short: paths have a limit
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=specs,
            connection_file=str(Path(sockets, "k.json")),
            transport="tcp" if sys.platform == "win32" else "ipc",
        )
        resources = {"metadata": {"path": str(folder)}}
        client = NotebookClient(content, km=manager, timeout=300, resources=resources)
        with client.setup_kernel(env=environment(folder), cleanup_kc=True):
            yield client


def environment(folder: Path) -> dict[str, str]:
    """Nothing of the user's, nothing from the network, and torchfake's own warnings are errors."""
    nowhere = "http://127.0.0.1:9"
    return {
        **os.environ,
        "IPYTHONDIR": str(folder / "ipython"),
        "HF_HUB_OFFLINE": "1",
        "http_proxy": nowhere,
        "https_proxy": nowhere,
        # tqdm would like ipywidgets, which no notebook here needs.
        "PYTHONWARNINGS": "error:::torchfake,ignore:IProgress not found",
    }


def run(notebook: Path, folder: Path, *, times: int = 1) -> Any:
    """The notebook with its outputs, each cell run so many times before the next."""
    content = read(notebook)
    with kernel(content, folder) as client:
        for index, cell in enumerate(content.cells):
            for _ in range(times if cell.cell_type == "code" else 0):
                client.execute_cell(cell, index)
    return content


def test_all_are_known() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == SHOWN.keys()


def test_the_kernel_is_this_python(tmp_path: Path) -> None:
    source = "import os, sys\nprint(sys.executable, os.getcwd(), sep='\\n')"
    cell = nbformat.v4.new_code_cell(source)
    content = nbformat.v4.new_notebook(cells=[cell])
    with kernel(content, tmp_path) as client:
        client.execute_cell(cell, 0)
    executable, folder = cell.outputs[0].text.splitlines()
    assert Path(executable) == Path(sys.executable)
    assert Path(folder).samefile(tmp_path)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    """To its asserts; it shows what it is to show, offline, and warns of nothing."""
    content = run(notebook, tmp_path)
    outputs = [output for cell in code_cells(content) for output in cell.outputs]
    said = [output.text for output in outputs if output.output_type == "stream"]
    assert not any("Warning" in text for text in said), said
    assert all(cell.outputs for cell in code_cells(content)[1:-1]), "a cell shows something"
    assert not code_cells(content)[-1].outputs, "asserts say nothing"

    shown = [output.data for output in outputs if "data" in output]
    html = [data["text/html"] for data in shown if "text/html" in data]
    figures = [data[FIGURE] for data in shown if FIGURE in data]
    assert (len(html), len(figures)) == SHOWN[notebook.stem]
    assert all(figure["data"] for figure in figures)
    assert not any(re.search(r"""(src|href)=["']?\s*(https?:)?//""", text) for text in html)


@pytest.mark.parametrize("name", STATEFUL)
def test_each_cell_can_be_run_twice(name: str, tmp_path: Path) -> None:
    (notebook,) = [notebook for notebook in NOTEBOOKS if notebook.stem == name]
    run(notebook, tmp_path, times=2)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs(notebook: Path) -> None:
    assert notebook.stat().st_size < MAX_BYTES
    content = read(notebook)
    nbformat.validate(content)
    assert (content.nbformat, content.nbformat_minor) == (4, 5)
    assert content.metadata == METADATA
    assert all(not cell.metadata for cell in content.cells)
    for cell in code_cells(content):
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_ends_in_asserts(notebook: Path) -> None:
    """Of names that the notebook made: the last cell alone claims nothing."""
    content = read(notebook)
    assert content.cells[0].cell_type == "markdown"
    assert content.cells[-1].cell_type == "code"
    trees = [ast.parse(cell.source) for cell in code_cells(content)]
    made = {n.id for tree in trees[:-1] for n in ast.walk(tree) if _is_made(n)}
    claims = [node for node in ast.walk(trees[-1]) if isinstance(node, ast.Assert)]
    used = {n.id for claim in claims for n in ast.walk(claim.test) if isinstance(n, ast.Name)}
    assert len(claims) >= 10
    assert len(used & made) >= 8


def _is_made(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
