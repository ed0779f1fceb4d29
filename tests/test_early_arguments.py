"""Names of GPUs on the command line are checked before torch is imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torchfake import _early_arguments
from torchfake.errors import DeviceError

ROOT = Path(__file__).parents[1]


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


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["fit", "x", "--gpu", "h100", "--gpu=t4"], ["h100", "t4"]),
        (["fit", "x", "--gpu"], []),
        (["fit", "x", "--gpu", "ours", "--profiles", "gpus.toml"], []),
        (["fit", "x", "--gpu", "ours", "--profiles=gpus.toml"], []),
        (["fit", "--gpu", "nothing", "--help"], []),
        ([], []),
    ],
)
def test_what_is_checked(arguments: list[str], names: list[str]) -> None:
    assert _early_arguments.names_of_gpus(arguments) == names
    _early_arguments.check(["fit", "x"])


def test_what_is_refused() -> None:
    with pytest.raises(DeviceError, match="--gpu='nope': there is no such GPU"):
        _early_arguments.check(["plan", "x", "--gpu", "h100,nope"])
