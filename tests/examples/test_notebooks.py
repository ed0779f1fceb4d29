"""Every notebook in examples/, run to its asserts in a kernel, shows what is stored in it."""

from __future__ import annotations

import ast
import copy
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.examples.notebooks import (
    FIGURE,
    METADATA,
    NOTEBOOKS,
    STATEFUL,
    SVG,
    code_cells,
    compared,
    kernel,
    masked,
    read,
    run,
    stored,
    versions,
)

MAX_BYTES = 500_000

SHOWN = {
    "deferred_init": (1, 0),
    "huge_architecture": (3, 1),
    "migrating_from_torchdistx": (0, 0),
    "serving": (2, 1),
    "which_layout": (2, 0),
    "will_it_fit": (6, 2),
}
"""By notebook: how many cells show HTML, and how many a figure."""


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NotebookClient]:
    """A kernel for all tests of a notebook: it takes longer to start and to import than to run."""
    notebook: Path = request.param
    with kernel(read(notebook), tmp_path_factory.mktemp(notebook.stem)) as started:
        yield started


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
    """To its asserts; it shows what is stored in it, offline, and prints no warning."""
    content = run(notebook, client)
    _check_stored(read(notebook), content)
    outputs = [output for cell in code_cells(content) for output in cell.outputs]
    printed = [output.text for output in outputs if output.output_type == "stream"]
    assert not any("Warning" in text for text in printed), printed
    assert all(cell.outputs for cell in code_cells(content)[1:-1]), "a cell shows something"
    without_progress = stored(copy.deepcopy(content))
    assert not code_cells(without_progress)[-1].outputs, "asserts print nothing"

    shown = [output.data for output in outputs if "data" in output]
    html = [data["text/html"] for data in shown if "text/html" in data]
    figures = [data[FIGURE] for data in shown if FIGURE in data]
    assert (len(html), len(figures)) == SHOWN[notebook.stem]
    assert all(figure["data"] for figure in figures)
    assert all(ET.fromstring(data[SVG]).tag for data in shown if FIGURE in data)
    assert not any(re.search(r"""(src|href)=["']?\s*(https?:)?//""", text) for text in html)


@with_client([notebook for notebook in NOTEBOOKS if notebook.stem in STATEFUL])
def test_each_cell_can_be_run_twice(notebook: Path, client: NotebookClient) -> None:
    run(notebook, client, times=2)


def _check_stored(file: Any, content: Any) -> None:
    """The stored outputs are those of this run; with other versions, outputs of the same types."""
    was, now = compared(file), compared(stored(copy.deepcopy(content)))
    remedy = "write them anew: nox -s notebooks"
    assert [[*map(set, outputs)] for outputs in was] == [[*map(set, o)] for o in now], remedy
    if file.metadata["torchfake"] == versions():
        assert was == now, remedy


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_with_outputs(notebook: Path) -> None:
    """Of all cells, in the order in which they were run, with pictures for where nothing runs."""
    text = notebook.read_text(encoding="utf-8")
    assert len(text) < MAX_BYTES
    content = read(notebook)
    nbformat.validate(content)
    assert (content.nbformat, content.nbformat_minor) == (4, 5)
    assert content.metadata == {**METADATA, "torchfake": content.metadata["torchfake"]}
    assert all(not cell.metadata for cell in content.cells)
    cells = code_cells(content)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert all(cell.outputs for cell in cells[1:-1])
    shown = [output.data for cell in cells for output in cell.outputs if "data" in output]
    assert sum(SVG in data for data in shown) == SHOWN[notebook.stem][1]
    assert FIGURE not in text
    assert not re.search(r"(/home/|/tmp/|/Users/|site-packages)", text), "a path of this machine"


def test_what_is_left_out_of_a_comparison() -> None:
    assert masked("0.12 s to build, at 0x7f00aa1122, /a/b/x.py:3") == (
        "<time> to build, at <address>, <folder>/x.py:3"
    )
    assert masked("12.3 GB, 5 operations, 80 s ") == "12.3 GB, 5 operations, <time> "


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
