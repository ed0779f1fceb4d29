"""Ctrl-C for real: a timer's signal, at random moments, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_signals_at_random_moments() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.interrupts.worker_signals", "16", "1"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100)
    assert "signals tried: 16, held: 16" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
