"""Every code block and command of README.md and docs/, and every doctest of src, is run."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchfake
from tests.docs import doc_blocks

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
OPTIONAL = {
    **{f"torchfake.cli.{n}": "typer" for n in ("commands", "graph", "options", "output", "plan")},
    "torchfake.inspect.targets.transformers_models": "transformers",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_does_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = [b for b in doc_blocks.blocks(page.read_text()) if b.language == "python"]
    if any("transformers" in block.text for block in python):
        pytest.importorskip("transformers")
    _skip_if_newer("".join(block.text for block in python))
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    with doc_blocks.torch_state_restored():
        for block in python:
            doc_blocks.run(block, namespace, page)


@pytest.mark.parametrize(("page", "command"), CONSOLE)
def test_command_does_what_the_page_says(
    page: Path,
    command: doc_blocks.Command,
    run: Callable[..., tuple[Any, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a process of its own, or in this one where transformers would have to be imported first:
    that takes longer than the command. What shows the memory of its process has one of its own.
    """
    _check_extras_and_sessions(command.text)
    arguments = command.torchfake_arguments
    if arguments is None:
        return
    uses_transformers = "transformers:" in command.text
    for package in ["typer", "rich", *(["transformers"] if uses_transformers else [])]:
        pytest.importorskip(package)
    _skip_if_newer(command.text)
    if uses_transformers and "peak memory" not in command.output:
        monkeypatch.chdir(tmp_path)
        exit_code, stdout, stderr = run(*arguments)
    else:
        exit_code, stdout, stderr = doc_blocks.run_command(arguments, tmp_path)
    printed = stdout + stderr
    if command.output.strip():
        assert doc_blocks.matches(command.output, printed), printed
    else:
        assert exit_code == 0, printed


OF_TRANSFORMERS_5_23 = ("activation_checkpointing_enable", "--sequence-parallel")


def _skip_if_newer(text: str) -> None:
    """Pages are written for the newest transformers; docs/versions.md says what older ones lack."""
    if any(name in text for name in OF_TRANSFORMERS_5_23):
        transformers = pytest.importorskip("transformers")
        if not hasattr(transformers.PreTrainedModel, OF_TRANSFORMERS_5_23[0]):
            pytest.skip("needs transformers 5.23")


def _check_extras_and_sessions(command: str) -> None:
    """The extras of ``pip install ".[extra]"`` and the sessions of ``nox -s session`` exist."""
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
    with doc_blocks.torch_state_restored():
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_files_named_in_a_docstring_exist(name: str) -> None:
    """Such as ``_replay/workers``: by the path from the package, or from a folder of the file."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin)
    folders = source.parents[: 1 + name.count(".")]
    for path in re.findall(r"``([a-z_]+(?:/[a-z_]+)+)``", source.read_text()):
        files = [folder / f"{path}{end}" for folder in folders for end in (".py", "/__init__.py")]
        assert any(file.exists() for file in files), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        target = page.parent / path if path else page
        if "://" not in path:
            assert target.exists(), path
            assert not heading or heading in anchors(target), heading


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_on_a_page_exist(page: Path) -> None:
    """By their paths from the root, src or src/torchfake; files of torch are named as torch's."""
    for path in re.findall(r"(?<!torch's )`([\w/]+\.py)\b[^`]*`", page.read_text()):
        folders = (ROOT, ROOT / "src", ROOT / "src" / "torchfake")
        assert any((folder / path).exists() for folder in folders), path


def test_blocks_are_compared_with_their_output() -> None:
    page = 'A\n```python\nprint("a  b", 1)\nint("x")\n```\n\n'
    page += "```output\na b [...]\nValueError: [...]\n```\n"
    (block,) = doc_blocks.blocks(page)
    doc_blocks.run(block, {}, Path("page.md"))
    assert not doc_blocks.matches("tensor(..., size=(2,))", "tensor(..., dtype=x, size=(2,))")
    wrong = block._replace(output="a b 2")
    with pytest.raises(AssertionError, match=r"page\.md:3 shows"):
        doc_blocks.run(wrong, {}, Path("page.md"))
