"""Every code block of README.md and docs/, every docstring's doctest, every command shown, run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import doc_blocks
import pytest

import torchfake

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONSOLE = [
    pytest.param(page, command, id=f"{page.name}:{command.line}")
    for page in PAGES
    for block in doc_blocks.blocks(page.read_text())
    if block.language == "console"
    for command in doc_blocks.commands(block)
]
MODULES = [
    info.name
    for info in pkgutil.walk_packages(torchfake.__path__, "torchfake.")
    if not info.name.endswith("__main__")
]
OPTIONAL = {"torchfake.cli": "typer", "torchfake.inspect.hf": "transformers"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_does_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = [b for b in doc_blocks.blocks(page.read_text()) if b.language == "python"]
    if any("transformers" in block.text for block in python):
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    with doc_blocks.torch_as_it_was():
        for block in python:
            doc_blocks.run(block, namespace, page)


@pytest.mark.parametrize(("page", "command"), CONSOLE)
def test_command_does_what_the_page_says(
    page: Path, command: doc_blocks.Command, tmp_path: Path
) -> None:
    _check_extras_and_sessions(command.text)
    arguments = command.torchfake_arguments
    if arguments is None:
        return
    needed = ["typer", "rich", *(["transformers"] if "transformers:" in command.text else [])]
    for package in needed:
        pytest.importorskip(package)
    done = doc_blocks.run_command(arguments, tmp_path)
    printed = done.stdout + done.stderr
    if command.output.strip():
        assert doc_blocks.matches(command.output, printed), printed
    else:
        assert done.returncode == 0, printed


def _check_extras_and_sessions(command: str) -> None:
    """What ``pip install ".[extra]"`` and ``nox -s session`` name is there."""
    project, sessions = (ROOT / "pyproject.toml").read_text(), (ROOT / "noxfile.py").read_text()
    for extra in re.findall(r"\.\[(\w+)\]", command):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"no extra {extra}"
    for session in re.findall(r"nox -s (\w+)", command):
        assert re.search(rf'^def {session}\(|name="{session}"', sessions, re.MULTILINE), session


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_do_what_they_say(name: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    module = importlib.import_module(name)
    with doc_blocks.torch_as_it_was():
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_convention_itself() -> None:
    page = 'A\n```python\nprint("a  b", 1)\nint("x")\n```\n\n'
    page += "```output\na b [...]\nValueError: [...]\n```\n"
    (block,) = doc_blocks.blocks(page)
    doc_blocks.run(block, {}, Path("page.md"))
    assert not doc_blocks.matches("tensor(..., size=(2,))", "tensor(..., dtype=x, size=(2,))")
    wrong = block._replace(output="a b 2")
    with pytest.raises(AssertionError, match=r"page\.md:3 says"):
        doc_blocks.run(wrong, {}, Path("page.md"))
