"""Notebooks, run in a kernel: for the tests, and for what is stored in them.

Input: the notebooks of examples/. Output: the same with their outputs; outputs as they are stored,
and as they are compared. Invariant: what differs from run to run is left out of a comparison, and
nothing else.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

STATEFUL = ("deferred_init", "migrating_from_torchdistx")
"""Those whose cells change what earlier cells made."""

NOTEBOOKS = sorted(
    (Path(__file__).parents[2] / "examples").glob("*.ipynb"),
    key=lambda path: (path.stem not in STATEFUL, path.stem),
)
FIGURE = "application/vnd.plotly.v1+json"
SVG = "image/svg+xml"
LIBRARIES = ("torch", "transformers")
"""Whose version decides what is printed."""

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
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


def run(notebook: Path, client: NotebookClient, *, times: int = 1) -> Any:
    """The notebook with its outputs, from no names, each cell run so many times before the next."""
    client.execute_cell(nbformat.v4.new_code_cell("%reset -f"), 0)
    client.reset_execution_trackers()
    client.nb = content = read(notebook)
    for index, cell in enumerate(content.cells):
        for _ in range(times if cell.cell_type == "code" else 0):
            client.execute_cell(cell, index)
    return content


def versions() -> dict[str, str]:
    """Of the libraries that decide what is printed, without what follows the minor version."""
    return {name: ".".join(version(name).split(".")[:2]) for name in LIBRARIES}


def stored(content: Any) -> Any:
    """A notebook that was run, as it is stored: with pictures in place of plotly's data."""
    for number, cell in enumerate(code_cells(content), 1):
        cell.execution_count, cell.metadata = number, {}
        cell.outputs = list(_joined(cell.outputs))
        for output in cell.outputs:
            output.get("data", {}).pop(FIGURE, None)
            if output.output_type == "execute_result":
                output.execution_count = number
            if "data" in output:
                output.metadata = {}
                output.data = {kind: _without_folders(t) for kind, t in output.data.items()}
            elif "text" in output:
                output.text = _without_folders(output.text)
    content.metadata = {**METADATA, "torchfake": versions()}
    return content


def _joined(outputs: list[Any]) -> Iterator[Any]:
    """Outputs, with what was printed in several pieces as one, and without bars of progress."""
    last: Any = None
    for output in outputs:
        is_text = output.output_type == "stream"
        if is_text and output.name == "stderr":
            continue
        if is_text and last is not None and last.get("name") == output.name:
            last.text += output.text
            continue
        last = output if is_text else None
        yield output


_FOLDERS = re.compile(r"[^\s\"'<>=(]*/(site-packages|ipykernel_\d+)/")


def _without_folders(text: str) -> str:
    """A text without the folders that libraries are installed in on this machine."""
    return _FOLDERS.sub("", text)


_VOLATILE = (
    (re.compile(r"\b\d+(\.\d+)?(e-\d+)? (s|ms|us|ns)\b"), "<time>"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"(/[\w.-]+)+/(?=\w+\.py)"), "<folder>/"),
    (re.compile(r"[\d.]+ MB to build.*"), "<memory>"),
    (re.compile(r"\b\d{6,}\.py"), "<cell>"),  # the name of a cell's code
)


def compared(content: Any) -> list[list[dict[str, str]]]:
    """The outputs of each cell by type, without what differs from run to run."""
    return [[_texts(output) for output in cell.outputs] for cell in code_cells(content)]


def _texts(output: Any) -> dict[str, str]:
    found = dict(output.get("data", {"stream": output.get("text", "")}))
    found.pop(FIGURE, None)
    return {kind: masked("".join(text)) for kind, text in found.items()}


def masked(text: str) -> str:
    """A text without times, addresses and folders."""
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return text
