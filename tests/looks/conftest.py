"""A browser, for tests of what people see: ``nox -s looks`` installs what they need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = Path(os.environ.get("LOOKS_PACKAGES", "build/looks/node_modules"))
"""The packages of npm that the session installs: style sheets of notebooks, axe."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window: the one that CHROMIUM names, or the first on PATH."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs Chromium")
    options = ["--no-sandbox", "--disable-gpu"]
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=path, args=options)
        yield opened
        opened.close()


def package(name: str) -> Path:
    """The folder of a package of npm."""
    if not (PACKAGES / name).is_dir():
        pytest.skip(f"needs {name} of npm: nox -s looks")
    return PACKAGES / name
