"""Which versions of torch are accepted, and what is said of the others."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from torchfake import fake_mode
from torchfake._torch import versions

ROOT = Path(__file__).parents[2]


def test_the_floor_is_said_once() -> None:
    """In pyproject.toml; what else names it is compared."""
    floor = ".".join(map(str, versions.OLDEST))
    assert f'"torch>={floor}"' in (ROOT / "pyproject.toml").read_text()
    for page in ("README.md", "docs/versions.md"):
        named = re.findall(r"torch (\d+\.\d+) or newer", (ROOT / page).read_text())
        assert set(named) == {floor}, page
    assert f'OLDEST_TORCH = "torch=={floor}.*"' in (ROOT / "noxfile.py").read_text()


def test_an_old_torch_is_refused_at_import() -> None:
    code = "import torch; torch.__version__ = '2.11.0+cpu'; import torchfake"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        "ImportError: torchfake needs torch 2.12 or newer, and torch 2.11.0+cpu is installed: "
        'pip install --upgrade "torch>=2.12"'
    )


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    versions.warn_of_new_torch.cache_clear()
    monkeypatch.setattr(torch, "__version__", "9.16.0a0+git123")


def _enter_twice() -> None:
    for _ in range(2):
        with fake_mode():
            assert torch.empty(2).shape == (2,)


@pytest.mark.usefixtures("newer")
def test_a_newer_torch_is_warned_of_once() -> None:
    with pytest.warns(
        versions.UncheckedTorchWarning, match=r"TORCHFAKE_ACCEPT_TORCH=9\.16"
    ) as seen:
        _enter_twice()
    assert len(seen) == 1
    assert seen[0].filename == __file__


@pytest.mark.usefixtures("newer")
def test_a_newer_torch_that_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.ACCEPT, "9.16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_of_new_torch()


def test_numbers_of_a_version() -> None:
    assert versions.parsed("2.12.1+cu130") == (2, 12)
    assert versions.parsed("unknown") == versions.NEWEST_RUN


@pytest.mark.parametrize("version", ["2.12.1+cu130", "2.13.0", "2.15.3", "unknown"])
def test_versions_that_were_run(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    versions.warn_of_new_torch.cache_clear()
    monkeypatch.setattr(torch, "__version__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.refuse_old_torch()
        versions.warn_of_new_torch()
