"""Names of GPUs on the command line are checked before torch is imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which importing torch fails."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}


def run(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "torchfake", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_before_torch_is_imported(without_torch: dict[str, str]) -> None:
    code, err = run(without_torch, "fit", "x", "--gpu", "t4", "--gpu=a100")
    assert code == 2
    assert err == "error: --gpu='a100' may mean a100-40gb or a100-80gb: give one of these names\n"
    code, err = run(without_torch, "fit", "x", "--gpu", "t4,4090")
    assert "torch was imported" in err


def test_in_a_background_job(without_torch: dict[str, str]) -> None:
    """Shells have these ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code, err = run(without_torch, "fit", "x", "--gpu", "nope")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, err[:20]) == (2, "error: --gpu='nope':")


def test_a_file_of_profiles_has_names_of_its_own(without_torch: dict[str, str]) -> None:
    _, err = run(without_torch, "fit", "x", "--gpu", "ours", "--profiles", "gpus.toml")
    assert "torch was imported" in err


def test_the_gpu_of_a_plan(without_torch: dict[str, str]) -> None:
    code, err = run(without_torch, "plan", "x", "--gpus", "8", "--gpu", "nope")
    assert (code, err[:20]) == (2, "error: --gpu='nope':")
