"""``--help``: options in groups, summaries whole, colours as the terminal allows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., tuple[int, str, str]]

GROUPS = [
    "Arguments",
    "Model",
    "Input",
    "Training",
    "Serving",
    "GPU",
    "Layout",
    "Output",
    "Options",
]
COMMANDS = ("inspect", "fit", "diff", "init", "graph", "plan")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def headings(text: str) -> list[str]:
    return re.findall(r"(?m)^(\w+):$", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_groups_are_in_the_order_of_a_question(run: Run, command: str) -> None:
    _, out, _ = run(command, "--help")
    found = headings(out)
    assert found == [name for name in GROUPS if name in found]
    assert {"Arguments", "Output", "Options"} <= {*found}


def test_an_option_is_in_its_group(run: Run) -> None:
    _, out, _ = run("fit", "--help")
    sections = re.split(r"(?m)^(\w+):$", out)
    groups = dict(zip(sections[1::2], sections[2::2], strict=True))
    for option, group in {
        "--dtype": "Model",
        "--seq": "Input",
        "--lora": "Training",
        "--serve": "Serving",
        "--gpu": "GPU",
        "--json": "Output",
    }.items():
        assert re.search(rf"(?m)^  {option} ", groups[group])


@pytest.mark.parametrize("width", [50, 80])
def test_summaries_of_commands_are_whole(
    run: Run, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = run("--help")
    commands = " ".join(out.partition("Commands:")[2].split())
    assert "..." not in commands
    assert "init Initialize a model as eager PyTorch would, to safetensors files." in commands


def test_no_range_of_a_number_is_told(run: Run) -> None:
    _, out, _ = run("init", "--help")
    assert "<=" not in out
    assert "--seed <int>" in out
    assert "[default: 0]" in out


def test_a_pipe_gets_no_colours(run: Run) -> None:
    assert "\x1b" not in run("fit", "--help")[1]


def test_force_color_colours_a_pipe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[36m--gpu NAME" in run("fit", "--help")[1]


def test_no_color_is_without_colours(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("fit", "--help")[1]


def test_help_imports_neither_torch_nor_the_console_of_rich() -> None:
    """They take longer than everything else."""
    command = [sys.executable, "-X", "importtime", "-m", "torchfake", "fit", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"torch", "numpy", "rich.console", "transformers"}
