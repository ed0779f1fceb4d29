"""test_LIBRARY.py and test_LIBRARY__SUBJECT.py are collected where LIBRARY is installed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what is not installed, except under ``nox -s ecosystem``, where it has to be."""
    stem = collection_path.stem
    name = stem.removeprefix("test_").partition("__")[0]
    if collection_path.suffix != ".py" or not stem.startswith("test_") or "ECOSYSTEM" in os.environ:
        return None
    return True if find_spec(name) is None else None
