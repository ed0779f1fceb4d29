"""Every notebook in examples/, run to its asserts in a kernel; none is stored with outputs."""

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
from nbclient.exceptions import CellExecutionError

STATEFUL = ("deferred_init", "migrating_from_torchdistx")
"""Those whose cells change what earlier cells made."""

NOTEBOOKS = sorted(
    (Path(__file__).parents[2] / "examples").glob("*.ipynb"),
    key=lambda path: (path.stem not in STATEFUL, path.stem),
)
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
    "which_layout": (2, 0),
    "will_it_fit": (6, 2),
}
"""By notebook: how many cells show HTML, and how many a figure."""

WARNINGS_ARE_ERRORS = (
    'import warnings\nwarnings.filterwarnings("error", module=r"torchfake(\\.|$)")\n'
)


def read(notebook: Path) -> Any:
    return nbformat.read(notebook, as_version=nbformat.NO_CONVERT)


def code_cells(content: Any) -> list[Any]:
    return [cell for cell in content.cells if cell.cell_type == "code"]


@contextmanager
def kernel(content: Any, folder: Path) -> Iterator[NotebookClient]:
    """A client with a kernel that runs in `folder`: this Python, whatever kernels are installed.

    Sockets are files where the platform has them, so that tests in parallel need no ports.
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
    """No settings of the user, no network, and torchfake's own warnings are errors."""
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "warnings_are_errors.py").write_text(WARNINGS_ARE_ERRORS)
    nowhere = "http://127.0.0.1:9"
    return {
        **os.environ,
        "IPYTHONDIR": str(folder / "ipython"),
        "HF_HUB_OFFLINE": "1",
        "http_proxy": nowhere,
        "https_proxy": nowhere,
        # tqdm recommends ipywidgets, which no notebook here needs.
        "PYTHONWARNINGS": "ignore:IProgress not found",
    }


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NotebookClient]:
    """A kernel for all tests of a notebook: it takes longer to start and to import than to run."""
    notebook: Path = request.param
    with kernel(read(notebook), tmp_path_factory.mktemp(notebook.stem)) as started:
        yield started


def run(notebook: Path, client: NotebookClient, *, times: int = 1) -> Any:
    """The notebook with its outputs, from no names, each cell run so many times before the next."""
    client.execute_cell(nbformat.v4.new_code_cell("%reset -f"), 0)
    client.reset_execution_trackers()
    client.nb = content = read(notebook)
    for index, cell in enumerate(content.cells):
        for _ in range(times if cell.cell_type == "code" else 0):
            client.execute_cell(cell, index)
    return content


def with_client(notebooks: list[Path]) -> pytest.MarkDecorator:
    """Run a test with each notebook, and a client whose kernel the notebook's tests share."""
    both = [(notebook, notebook) for notebook in notebooks]
    return pytest.mark.parametrize(
        ("notebook", "client"),
        both,
        indirect=["client"],
        ids=[notebook.stem for notebook in notebooks],
        scope="module",
    )


def test_all_are_known() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == SHOWN.keys()


def test_the_kernel_is_this_python(tmp_path: Path) -> None:
    """It runs in its folder, and a warning of a module of torchfake is an error."""
    place = nbformat.v4.new_code_cell(
        "import os, sys\nprint(sys.executable, os.getcwd(), sep='\\n')"
    )
    warning = nbformat.v4.new_code_cell(
        "exec('import warnings; warnings.warn(0)', {'__name__': 'torchfake.fx'})"
    )
    with kernel(nbformat.v4.new_notebook(cells=[place, warning]), tmp_path) as client:
        client.execute_cell(place, 0)
        with pytest.raises(CellExecutionError, match="UserWarning"):
            client.execute_cell(warning, 1)
    executable, folder = place.outputs[0].text.splitlines()
    assert Path(executable) == Path(sys.executable)
    assert Path(folder).samefile(tmp_path)


@with_client(NOTEBOOKS)
def test_notebook_runs(notebook: Path, client: NotebookClient) -> None:
    """To its asserts; it shows its outputs, offline, and prints no warning."""
    content = run(notebook, client)
    outputs = [output for cell in code_cells(content) for output in cell.outputs]
    printed = [output.text for output in outputs if output.output_type == "stream"]
    assert not any("Warning" in text for text in printed), printed
    assert all(cell.outputs for cell in code_cells(content)[1:-1]), "a cell shows something"
    assert not code_cells(content)[-1].outputs, "asserts print nothing"

    shown = [output.data for output in outputs if "data" in output]
    html = [data["text/html"] for data in shown if "text/html" in data]
    figures = [data[FIGURE] for data in shown if FIGURE in data]
    assert (len(html), len(figures)) == SHOWN[notebook.stem]
    assert all(figure["data"] for figure in figures)
    assert not any(re.search(r"""(src|href)=["']?\s*(https?:)?//""", text) for text in html)


@with_client([notebook for notebook in NOTEBOOKS if notebook.stem in STATEFUL])
def test_each_cell_can_be_run_twice(notebook: Path, client: NotebookClient) -> None:
    run(notebook, client, times=2)


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
    """The last cell asserts something of names that the notebook assigned."""
    content = read(notebook)
    assert content.cells[0].cell_type == "markdown"
    assert content.cells[-1].cell_type == "code"
    trees = [ast.parse(cell.source) for cell in code_cells(content)]
    assigned = {n.id for tree in trees[:-1] for n in ast.walk(tree) if _is_assigned(n)}
    asserts = [node for node in ast.walk(trees[-1]) if isinstance(node, ast.Assert)]
    used = {n.id for node in asserts for n in ast.walk(node.test) if isinstance(n, ast.Name)}
    assert len(asserts) >= 10
    assert len(used & assigned) >= 8


def _is_assigned(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
