"""The counter of runs: shown from the second second on, and only where somebody looks."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import _progress, estimate, fake_mode, fit
from torchfake.inspect.storages import storage_tracker


class Terminal(io.StringIO):
    """Notices that something was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "runs" in text:
            self.drawn.set()
        return super().write(text)


def stderr_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()  # set in the test itself: pytest sets its own between fixture and test
    monkeypatch.setattr(sys, "stderr", found)
    return found


def test_a_counter_is_drawn_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr_of(monkeypatch)
    monkeypatch.setattr(_progress, "SECONDS_OF_SILENCE", 0.0)
    with _progress.progress("Waiting", True):
        _progress.count("the first")
        with _progress.progress("Inside", True):
            _progress.count("the second")
        assert terminal.drawn.wait(60)
    shown = terminal.getvalue()
    assert "Waiting: " in shown
    assert " runs, 00:" in shown
    assert "Inside" not in shown
    assert shown.rsplit("\r", 2)[1].strip() == ""  # cleared
    _progress.count("nothing is open")
    assert terminal.getvalue() == shown


def test_nothing_is_drawn_in_the_first_second(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr_of(monkeypatch)
    assert _progress.SECONDS_OF_SILENCE == 1.0
    with _progress.progress("Waiting", True):
        _progress.count("a short run")
    assert terminal.getvalue() == ""


def test_scripts_are_silent_and_notebooks_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = stderr_of(monkeypatch)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # another test may have notebooks
    monkeypatch.setattr(_progress, "SECONDS_OF_SILENCE", 0.0)
    opened: list[bool] = []
    original: Any = _progress._counter

    def counter(what: str, *, is_needed: bool) -> Any:
        opened.append(is_needed)
        return original(what, is_needed=is_needed)

    monkeypatch.setattr(_progress, "_counter", counter)
    with fake_mode():
        layer = nn.Linear(8, 8)
    fit(estimate(layer, input_size=(2, 8)), "h100-80gb")
    assert (opened, terminal.getvalue()) == ([], "")
    monkeypatch.setitem(sys.modules, "ipykernel", _progress)
    fit(estimate(layer, input_size=(2, 8)), "h100-80gb")
    assert opened == [False, False]


SLOW = "import time, torch\n\n\ndef Net():\n    time.sleep(1.5)\n    return torch.nn.Linear(4, 4)\n"


def test_the_command_is_silent_unless_it_is_asked(
    run: Callable[..., tuple[Any, str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "slow.py"
    file.write_text(SLOW)
    command = [sys.executable, "-m", "torchfake", "inspect", f"{file}:Net"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ran.stderr, "runs" in ran.stdout) == ("", False)
    for option in ("--no-progress", "--progress"):
        code, out, err = run(option, "inspect", f"{file}:Net")
        assert (code, "runs" in out) == (0, False)
        assert ("torchfake inspect: 0 runs, 00:0" in err) == (option == "--progress")
        assert option == "--progress" or err == ""
    code, _, err = run("--progress", "inspect", f"{file}:Nothing")
    assert code != 0
    assert err.splitlines()[-1].startswith("error: ")


class Looping(nn.Module):
    def forward(self, x: Any) -> Any:
        for _ in range(20):
            x = x * 2
        return x


def test_a_module_that_loops_over_operators_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_tracker, "MANY_OPERATORS", 15)
    written = list[str]()
    with fake_mode():
        model = nn.Sequential(nn.Linear(4, 4), Looping(), Looping())
    with _progress.noticing(written.append):
        estimate(model, torch.ones(2, 4), mode="inference")
    estimate(model, torch.ones(2, 4), mode="inference")  # nobody is told
    [text] = written
    assert text.startswith("1 has run 15 operators by itself (")
    assert "test_progress.py:" in text
    assert " in forward): a loop in Python" in text
