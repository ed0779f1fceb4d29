"""Reference pages that are generated: public names from docstrings, commands from their options.

Input: the package. Output: files for Sphinx's autodoc, and Markdown. Invariant: every name in
``__all__`` of a public module is on one page. Called by: ``assemble``; ``tests/docs`` compares the
names.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = (
    "torchfake", "torchfake.inspect", "torchfake.distributed", "torchfake.fx", "torchfake.errors",
)  # fmt: skip
"""The public modules, in the order of the pages. A name is on the page of the first that has it."""


def names_by_module() -> dict[str, list[str]]:
    """The public names that are on the page of each module."""
    seen: set[int] = set()
    found: dict[str, list[str]] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        found[name] = [n for n in module.__all__ if not inspect.ismodule(getattr(module, n))]
        if name != "torchfake.errors":  # errors have a page of their own
            found[name] = [n for n in found[name] if not _is_error(getattr(module, n))]
        found[name] = [n for n in found[name] if id(getattr(module, n)) not in seen]
        seen |= {id(getattr(module, n)) for n in found[name]}
    return found


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def write(folder: Path) -> None:
    """Write the pages into a new folder."""
    folder.mkdir()
    for module, names in names_by_module().items():
        (folder / f"{module}.rst").write_text("\n".join(_module_page(module, names)))
    (folder / "command-line.md").write_text("\n".join(_command_pages()))


def _module_page(module: str, names: list[str]) -> Iterator[str]:
    yield from (module, "=" * len(module), "", f".. currentmodule:: {module}", "")
    found = importlib.import_module(module)
    for name in names:
        value = getattr(found, name)
        if _is_error(value):
            yield from (f".. autoexception:: {name}", "   :show-inheritance:", "")
        elif isinstance(value, type):
            yield from (f".. autoclass:: {name}", "   :members:", "")
        elif callable(value):
            yield from (f".. autofunction:: {name}", "")
        else:
            yield from (f".. autodata:: {name}", "   :no-value:", "")


def field_comments(kind: type) -> dict[str, str]:
    """The comments beside the fields of a record, or the strings below them, by field."""
    try:
        lines, _ = inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return {}
    text = textwrap.dedent("".join(lines))
    body = ast.parse(text).body[0].body  # type: ignore[attr-defined]
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for field, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            words = comments.get(field.end_lineno or 0, "")
            value = getattr(below, "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                words = value.value
            if not field.target.id.startswith("_"):
                found[field.target.id] = " ".join(words.split())
    return found


def _command_pages() -> Iterator[str]:
    """The commands as their help describes them."""
    from typer.testing import CliRunner

    from torchfake.cli.commands import app

    runner = CliRunner(env={"COLUMNS": "96", "TERMINAL_WIDTH": "96", "NO_COLOR": "1"})

    def shown(*arguments: str) -> str:
        return runner.invoke(app, [*arguments, "--help"], prog_name="torchfake").output.strip()

    commands = sorted(command.name for command in app.registered_commands if command.name)
    yield from ("# Command line", "", "```text", shown(), "```", "")
    for name in commands:
        yield from (f"## torchfake {name}", "", "```text", shown(name), "```", "")
