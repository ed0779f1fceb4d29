"""``torchfake fit``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import


Run = Callable[..., tuple[int, str, str]]


def test_fit(run: Run) -> None:
    options = ("--seq", "32", "--batch", "10000", "--optimizer", "adamw")
    code, out, err = run("fit", *SMALL, *options)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if "batch" in line]
    assert rows[0][0] == "t4-16gb"
    assert all(row[-3] == "yes" and int(row[-1]) > 10_000 for row in rows)


def test_fit_says_no(run: Run, tmp_path: Path) -> None:
    gpus = tmp_path / "gpus.toml"
    gpus.write_text('[small]\ntotal_memory = "1.001 GiB"\n[large]\ntotal_memory = "9 GiB"\n')
    options = ("--seq", "32", "--train", "--profiles", str(gpus))
    no_search = ("--batch", "512", "--gpu", "small", "--vary", "none")
    code, out, _ = run("fit", *SMALL, *options, *no_search, "--json")
    assert code == 1
    assert json.loads(out)["fits"][0]["fits"] is False
    code, out, _ = run("fit", *SMALL, *options, "--vary", "seq", "--json")
    assert code == 0
    assert [fit["gpu"] for fit in json.loads(out)["fits"]] == ["small", "large"]
