"""A file named test_LIBRARY.py is collected where LIBRARY is installed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what is not installed, except under ``nox -s ecosystem``, where it has to be."""
    name = collection_path.stem.removeprefix("test_")
    if collection_path.suffix != ".py" or name == collection_path.stem or "ECOSYSTEM" in os.environ:
        return None
    return True if find_spec(name) is None else None
