"""``torchfake inspect`` on a terminal, and as a process of its own."""

# ruff: noqa: E501  (what is printed is as wide as it is)
from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import check_output
from torchfake import estimate, fake_mode
from torchfake.cli.output import print_record
from torchfake.inspect.records.record import Record, shown
from torchfake.inspect.show.rows import Block, as_lines

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers warns on import
    pytest.mark.usefixtures("folder"),
]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(run, monkeypatch):
    """Run the command on a terminal so many columns wide; what it shows, colours left out."""

    def on_terminal(width, *arguments):
        terminal = Terminal()
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", terminal)
        code, _, err = run(*arguments)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
        shown = shown.translate(str.maketrans("├└│─", "+`|-"))  # expecttest writes ASCII
        assert all(len(line) <= width for line in shown.splitlines())
        return code, "\n".join(line.rstrip() for line in shown.splitlines()), err

    return on_terminal


def test_a_wide_terminal(on_terminal):
    check_output(
        on_terminal(200, "inspect", "models_here:Net"),
        """\
108 params | 432 B of mixed dtypes

module                    parameters  % of total  bytes  buffer bytes  tensors
Net                              108       100.0  432 B          40 B
+- (embedding) Embedding          40        37.0  160 B                weight [10, 4]
+- (layers) 3 x Linear            60        55.6  240 B                weight [4, 4], bias [4]
+- (norm) BatchNorm1d              8         7.4   32 B          40 B  weight [4] frozen, bias [4], running_mean [4] buffer, running_var [4] buffer, num_batches_tracked [] int64 buffer
`- (head) Linear                                                       weight tied to embedding.weight

"n x" rows total n identical blocks; the rows beneath show one of them.

parameters   108, 432 B
trainable    104
frozen       4
buffers      9 values, 40 B
dtype        float32 464 B, int64 8 B
device       cpu
time         <time>
peak memory  <memory>""",
    )


def test_a_narrow_terminal(on_terminal):
    check_output(
        on_terminal(60, "inspect", "models_here:Net"),
        """\
108 params | 432 B of mixed dtypes

module                    parameters  % of total  bytes
Net                              108       100.0  432 B
+- (embedding) Embedding          40        37.0  160 B
|     weight [10, 4]
+- (layers) 3 x Linear            60        55.6  240 B
|     weight [4, 4], bias [4]
+- (norm) BatchNorm1d              8         7.4   32 B
|     weight [4] frozen, bias [4], running_mean [4] buffer,
|     running_var [4] buffer,
|     num_batches_tracked [] int64 buffer
`- (head) Linear
      weight tied to embedding.weight
left out at 60 columns: buffer bytes

"n x" rows total n identical blocks; the rows beneath show
one of them.

parameters   108, 432 B
trainable    104
frozen       4
buffers      9 values, 40 B
dtype        float32 464 B, int64 8 B
device       cpu
time         <time>
peak memory  <memory>""",
    )


def test_a_real_process(folder):
    """Plain ASCII when stdout is no terminal, whatever its encoding and width."""
    script = shutil.which("torchfake", path=str(Path(sys.executable).parent))
    assert script is not None, "the package is not installed"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "20"}
    asked = ["inspect", "models_here:Net", "--depth", "1"]
    first = subprocess.run([script, *asked], capture_output=True, text=True, env=environment)
    assert (first.returncode, first.stderr) == (0, "")
    assert "  (layers) 3 x Linear  " in first.stdout
    module = [sys.executable, "-m", "torchfake"]
    second = subprocess.run([*module, "inspect", "nowhere:f"], capture_output=True, text=True)
    assert (second.returncode, second.stdout) == (2, "")
    assert (
        second.stderr
        == "error: there is no module 'nowhere' in the current directory or installed\n"
    )


def test_colours_are_as_the_environment_says(run, monkeypatch):
    """``FORCE_COLOR`` colours a pipe, ``NO_COLOR`` leaves colours out."""
    words = ("fit", *MODEL, "--gpu", "t4,h100", "--batch", "1", "--vary", "none")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, plain, _ = run(*words)
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _, coloured, _ = run(*words)
    assert "\x1b[1;32myes\x1b[0m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    _, bold, _ = run(*words)
    assert "\x1b[1myes\x1b[0m" in bold


def test_lines_of_code_stay_whole(monkeypatch):
    code = "x = " + " + ".join(["a_long_name"] * 20) + "\n    y = 1"

    class Shown(Record):
        pass

    shown.register(Shown)(
        lambda found, *, depth=None: [as_lines([("", "said " * 30)]), Block(code=code)]
    )
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", terminal)
    print_record(Shown(), as_json=False)
    said = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert said.endswith(f"\n\n{code}\n")
    assert max(map(len, said.partition("\n\n")[0].splitlines())) <= 40


def test_every_answer_is_as_wide_as_the_terminal(on_terminal):
    sizes = ["-c", "num_hidden_layers=2", "-c", "vocab_size=64", "-c", "hidden_size=256"]
    target = ["transformers:LlamaForCausalLM", *sizes]
    for words in (["graph"], ["plan", "--gpus", "8", "--mesh", "dp=4,tp=2"]):
        _, shown, err = on_terminal(80, words[0], *target, *words[1:])
        assert not err
        assert len(shown.splitlines()) > 10
    assert re.search(r"(?m)^fits +yes: [^\n]*\n {20,}\S", shown)  # wrapped under itself
    _, shown, _ = on_terminal(80, "diff", target[0], "transformers:BertModel")
    assert shown.startswith("different: ")


def test_a_path_that_is_too_long_stays_whole(monkeypatch):
    with fake_mode():
        found = estimate(torch.nn.Linear(8, 8), torch.empty(2, 8))
    path = "/a" * 60
    monkeypatch.setattr(type(found), "left_out", (f"what is in {path} is not run",))
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", terminal)
    print_record(found, as_json=False)
    assert path in terminal.getvalue()


def test_a_command_that_is_wrapped_can_be_pasted(on_terminal):
    _, shown, _ = on_terminal(80, "fit", *MODEL, "--train", "--gpu", "t4", "--batch", "4")
    command = re.search(r"\nnext +(torchfake (?:[^\n]*\\\n)*[^\n]*)\n", shown)
    assert "\\\n" in command[1]
    words = shlex.split(command[1].replace("\\\n", " "))
    assert words[:2] == ["torchfake", "fit"]
    assert "--gpu" in words


MODEL = ["transformers:LlamaForCausalLM", "-c", "num_hidden_layers=4"]
