"""Runs notebooks and stores what they show: ``python -m tests.examples.write_notebooks [NAME...]``.

Input: names of notebooks in examples/, or none for all. Output: the files, with their outputs.
Invariant: one that fails is not written.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat

from tests.examples.notebooks import NOTEBOOKS, kernel, read, run, stored


def write(notebook: Path) -> None:
    """Run a notebook, and store it with its outputs."""
    with tempfile.TemporaryDirectory() as folder, kernel(read(notebook), Path(folder)) as client:
        content = stored(run(notebook, client))
    nbformat.validate(content)
    nbformat.write(content, notebook)


if __name__ == "__main__":
    for path in NOTEBOOKS:
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            write(path)
            print(f"{path.name}: {path.stat().st_size:,} bytes")
