"""The code in a Markdown page, and how it is run.

Input: the text of a page. Output: its blocks, and what running them printed. The convention:

- a ``python`` block is run; the blocks of a page share one namespace, in order;
- an ``output`` block right after it holds all that it prints. If its last paragraph is
  ``SomeError: message``, the block must end by raising that. A ``python`` block without an
  ``output`` block prints nothing and raises nothing;
- a ``python`` block that begins with ``>>>`` is a doctest;
- a ``console`` block holds commands after ``$``, each followed by its output; a command goes on
  after a backslash at the end of a line. Those that begin with ``torchfake`` are run; a command
  without output under it is only required to succeed;
- in outputs, ``[...]`` stands for any text, and differences in white space do not count. Numbers
  are those of ``PAGE_TORCH``: on another torch, whose kernels take other memory, each may differ by
  a fifth, and the line of cuBLAS's workspaces may be missing: torch 2.15 keeps none.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import re
import shlex
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

ELISION = "[...]"

PAGE_TORCH = "2.13"
"""The torch whose outputs the pages show."""

_WORKSPACE = re.compile(r"^ +workspace .*\n", re.MULTILINE)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


class Block(NamedTuple):
    """One fenced block."""

    language: str
    text: str
    line: int  # of its first line of text, counted from 1
    output: str | None = None  # of a python block: the output block that follows it


class Command(NamedTuple):
    """One command of a console block."""

    text: str  # "pip install nox && nox -s tests"
    output: str
    line: int

    @property
    def torchfake_arguments(self) -> list[str] | None:
        """The arguments of the ``torchfake`` call in this command, if it makes one."""
        for part in self.text.split("&&"):
            words = shlex.split(part)
            if words[:1] == ["torchfake"]:
                return words[1:]
        return None


_FENCE = re.compile(r"^( *)```(\w*)[ \t]*\n(.*?)^\1```[ \t]*$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, with each output in the block that prints it."""
    found: list[Block] = []
    end_of_last = 0
    for match in _FENCE.finditer(page):
        _indent, language, text = match.groups()
        text = textwrap.dedent(text)
        line = page.count("\n", 0, match.start()) + 2
        if language == "output":
            between = page[end_of_last : match.start()]
            assert not between.strip(), f"line {line}: an output stands right after its block"
            assert found[-1].language == "python", f"line {line}: an output of no python block"
            found[-1] = found[-1]._replace(output=text)
        else:
            found.append(Block(language, text, line))
        end_of_last = match.end()
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block."""
    found: list[Command] = []
    goes_on = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        if goes_on or line.startswith("$ "):
            if not goes_on:
                found.append(Command("", "", number))
            goes_on = line.endswith("\\")
            part = line.removeprefix("$ ").rstrip("\\").strip()
            found[-1] = found[-1]._replace(text=f"{found[-1].text} {part}".strip())
        else:
            assert found, f"line {number}: output before any command"
            found[-1] = found[-1]._replace(output=f"{found[-1].output}{line}\n")
    return found


def matches(expected: str, printed: str) -> bool:
    """Whether `printed` is `expected`, whose elisions stand for any text."""
    is_of_page = torch.__version__.startswith(f"{PAGE_TORCH}.")
    wanted, found = (" ".join(text.split()) for text in (expected, printed))
    if _is_equal(wanted, found) or is_of_page:
        return _is_equal(wanted, found)
    others = (_WORKSPACE.sub("", text) for text in (expected, printed))
    return _is_near(*(" ".join(text.split()) for text in others))


def _is_equal(expected: str, printed: str) -> bool:
    pattern = r"\s*.*?\s*".join(re.escape(part.strip()) for part in expected.split(ELISION))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def _is_near(expected: str, printed: str) -> bool:
    """Whether they are equal but for numbers, and each number is within a fifth."""
    parts = [
        f"({_NUMBER.pattern})".join(map(re.escape, _NUMBER.split(part.strip())))
        for part in expected.split(ELISION)
    ]
    match = re.fullmatch(r"\s*.*?\s*".join(parts), printed, re.DOTALL)
    if match is None:
        return False
    pairs = zip(_NUMBER.findall(expected.replace(ELISION, "")), match.groups(), strict=True)
    values = ([float(text.replace(",", "")) for text in pair] for pair in pairs)
    return all(abs(a - b) <= 0.2 * abs(a) for a, b in values)


def run(block: Block, namespace: dict[str, Any], path: Path) -> None:
    """Run a python block; raise AssertionError if it does not print what the page shows."""
    if block.text.startswith(">>>"):
        _run_doctest(block, namespace, path)
        return
    printed = _printed(block, namespace, path)
    if not matches(block.output or "", printed):
        raise AssertionError(
            f"{path}:{block.line} shows\n{block.output or '(nothing)'}\nand prints\n{printed}"
        )


def _printed(block: Block, namespace: dict[str, Any], path: Path) -> str:
    """What a block prints, and the last line of its traceback if it raises."""
    source, name = block.text, f"<{path.name}:{block.line}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, name, "exec"), namespace)
        except Exception as error:
            if block.output is None:
                raise
            message = "".join(traceback.format_exception_only(error))
            printed.write(message.removeprefix(f"{type(error).__module__}."))
    return printed.getvalue()


def _run_doctest(block: Block, namespace: dict[str, Any], path: Path) -> None:
    test = doctest.DocTestParser().get_doctest(
        block.text, namespace, path.name, str(path), block.line - 1
    )
    report = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=report.write, clear_globs=False)
    namespace.update(test.globs)
    assert not runner.failures, report.getvalue()


@contextlib.contextmanager
def torch_state_restored() -> Iterator[None]:
    """Seed torch; restore its generator and default dtype afterwards, and end a process group."""
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    torch.manual_seed(0)
    try:
        yield
    finally:
        torch.set_rng_state(state)
        torch.set_default_dtype(dtype)
        if torch.distributed.is_initialized():  # a page that stopped half-way
            torch.distributed.destroy_process_group()


def run_command(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Run ``torchfake ARGUMENTS`` as a user does, in `folder`: exit code, stdout, stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "torchfake", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
