"""Streams that are closed, full, or of another encoding: one line, and an exit code."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchfake.__main__ import main
from torchfake.cli import interrupts, stdout

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers warns on import
    pytest.mark.usefixtures("folder"),
]

COMMANDS = [
    ("inspect", "models_here:Net"),
    ("inspect", "models_here:Net", "--json"),
    ("diff", "models_here:Net", "models_here:Net"),
    ("init", "models_here:Net", "--out", "out"),
    ("--help",),
    ("inspect", "--help"),
    ("--version",),
]


class Broken(io.StringIO):
    """A stream that cannot be written to."""

    def __init__(self, code: int, *, at_flush: bool = False) -> None:
        super().__init__()
        self.error = OSError(code, os.strerror(code))
        self.at_flush = at_flush

    def write(self, text: str) -> int:
        if not self.at_flush:
            raise self.error
        return len(text)

    def flush(self) -> None:
        raise self.error


class Terminal(Broken):
    def isatty(self) -> bool:
        return True


def outcome(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["torchfake", *arguments])
    return main()


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "stream",
    [
        lambda: Broken(errno.ENOSPC),
        lambda: Broken(errno.EPIPE, at_flush=True),
        lambda: Terminal(errno.EIO),
    ],
    ids=["full", "pipe", "terminal"],
)
def test_stdout_that_cannot_be_written(
    arguments: tuple[str, ...], stream: Callable[[], Broken], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, said = stream(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", broken)
    monkeypatch.setattr(sys, "stderr", said)
    is_closed_pipe = broken.error.errno == errno.EPIPE  # head has read enough
    assert outcome(monkeypatch, *arguments) == (141 if is_closed_pipe else 2)
    message = f"error: stdout could not be written to: {broken.error.strerror}\n"
    assert said.getvalue() == ("" if is_closed_pipe else message)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_stdout(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    said, closed = io.StringIO(), io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", said)
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stdout", stream)
        assert outcome(monkeypatch, *arguments) == 2
    line = "error: there is no stdout to print to: it is closed\n"
    assert said.getvalue() == 2 * line


@pytest.mark.parametrize("stream", [None, Broken(errno.ENOSPC)], ids=["closed", "full"])
def test_no_stderr(
    stream: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code in (
        (("inspect", "nowhere:f"), 2),
        (("inspect", "models_here:interrupted"), 130),
        (("nonsense",), 2),
        (("inspect", "models_here:Net"), 0),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        assert outcome(monkeypatch, *arguments) == code
        if sys.stderr is not stream:
            sys.stderr.close()
        assert bool(capsys.readouterr().out) == (code == 0)


def test_an_encoding_without_most_characters(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "names_here.py").write_text(
        "import torch\ndef net():\n    return torch.nn.ModuleDict({'é中': torch.nn.Linear(1, 1)})\n"
    )
    for encoding, shown in (("ascii", r"\xe9\u4e2d"), ("latin-1", r"é\u4e2d"), ("utf-8", "é中")):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
        assert outcome(monkeypatch, "inspect", "names_here:net") == 0
        assert f"({shown}) Linear" in raw.getvalue().decode(encoding)


@pytest.mark.parametrize("columns", ["0", "1", "2", "9", "x"])
def test_terminals_of_no_width(columns: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shown(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Shown()
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", shown)
    assert run("inspect", "models_here:Net")[0] == 0
    assert shown.getvalue()


def test_an_interrupt_while_printing(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    for name in (
        "inspect.records.record.plain_text",
        "inspect.inspection.inspect_target",
        "cli.output.json_text",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"torchfake.{name}", interrupted)
            json_option = ("--json",) if name.endswith("json_text") else ()
            assert run("inspect", "models_here:Net", *json_option) == (
                130, "", "error: interrupted\n",
            )  # fmt: skip


def test_what_a_library_raises_is_one_line(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    for error in (RecursionError("deep\x1b"), SystemExit(3), MemoryError(), UnicodeError("a\nb")):

        def fails(*args: Any, error: BaseException = error, **kwargs: Any) -> None:
            raise error

        monkeypatch.setattr("torchfake.inspect.inspection.inspect_target", fails)
        code, out, err = run("inspect", "models_here:Net")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: {type(error).__name__}")
        assert "\x1b" not in err


def test_json_has_no_control_characters() -> None:
    name = "".join(map(chr, range(300))) + "\ud800"
    text = stdout.json_text([name])
    assert json.loads(text) == [name]
    assert text.replace("\n", "").isprintable()
    assert text.isascii()


def test_help_says_that_code_runs(run: Any) -> None:
    for command in ("inspect", "fit", "diff", "init"):
        words = run(command, "--help")[1].replace("|", " ").split()
        assert "code" in words
        assert "package.module:NAME" in " ".join(words)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def _noticing_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_real_processes(folder: Any) -> None:
    """Closed streams, and an interrupt while torch is imported."""
    module = [sys.executable, "-m", "torchfake", "inspect", "nowhere:f"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    closed = subprocess.Popen(["bash", "-c", f"{' '.join(module)} <&- >&-"], **pipes)
    # A shell that runs the tests in the background has interrupts ignored, here and below.
    interrupted = subprocess.Popen(module, preexec_fn=_noticing_interrupts, **pipes)
    while b"libtorch" not in Path(f"/proc/{interrupted.pid}/maps").read_bytes():
        time.sleep(0.01)
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.communicate(timeout=60) == (b"", b"error: interrupted\n")
    assert interrupted.returncode == interrupts.INTERRUPTED
    line = b"error: there is no stdout to print to: it is closed\n"
    assert (closed.communicate(timeout=60), closed.returncode) == ((b"", line), 2)
