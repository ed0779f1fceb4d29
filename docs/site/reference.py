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
import re
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MODULES = (
    "torchfake", "torchfake.inspect", "torchfake.distributed", "torchfake.observe", "torchfake.fx",
    "torchfake.errors",
)  # fmt: skip
"""The public modules, in the order of the pages. A name is on the page of the first that has it."""

GROUPS = {
    "fakes": (
        "Fakes",
        ("fake_mode", "fake_like", "meta_like", "is_fake", "FakeTensor", "answering", "Question",
         "Answer", "Answers", "profiles", "read_profiles", "CudaProfile"),
    ),
    "inspecting": (
        "Inspecting and planning",
        ("fit", "estimate", "summary", "check", "example_inputs", "plan", "diff", "graph_of",
         "report", "serve", "Serve"),
    ),
    "deferred": (
        "Deferred init",
        ("deferred_init", "deferred_mode", "materialize_module", "materialize_tensor",
         "is_deferred", "dematerialize_module", "save_materialized", "graph", "meta_init",
         "materialize", "is_meta_init", "clear_meta_init_cache", "install_as_torchdistx"),
    ),
}  # fmt: skip
"""The pages of ``torchfake``: the file of each, its title, its names, the first ones first."""


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
    by_module = names_by_module()
    left = set(by_module.pop("torchfake"))
    for page, (title, names) in GROUPS.items():
        (folder / f"{page}.rst").write_text("\n".join(_page(title, "torchfake", names)))
        left -= set(names)
    assert not left, f"in no group: {sorted(left)}"
    for module, found in by_module.items():
        (folder / f"{module}.rst").write_text("\n".join(_page(module, module, found)))
    (folder / "command-line.md").write_text("\n".join(_command_pages()))


def _page(title: str, module: str, names: Sequence[str]) -> Iterator[str]:
    yield from (title, "=" * len(title), "", f".. currentmodule:: {module}", "")
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
    """The commands, with their options as tables, in the groups that the help has."""
    import typer

    from torchfake.cli.commands import app

    yield from ("# Command line", "")
    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join([name, *(p.name.upper() for p in arguments), "[OPTIONS]"])
        help_text = inspect.cleandoc(command.help or "").replace("\f", "")
        yield from (f"## torchfake {name}", "", help_text, "", f"`torchfake {usage}`", "")
        groups: dict[str, list[Any]] = {"": arguments}
        for param in command.params:
            if param not in arguments and not getattr(param, "hidden", False):
                groups.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(
                    param
                )
        for title, params in groups.items():
            if params:
                yield from (f"**{title}**", "") if title else ()
                kind = "option" if title else "argument"
                yield from (f"| {kind} | meaning |", "|---|---|", *map(_option_row, params), "")


def _option_row(param: Any) -> str:
    names = ", ".join(f"`{n}`" for n in (*param.opts, *param.secondary_opts))
    if param.param_type_name == "argument":
        names = f"`{param.name.upper()}`"
    value = f" `{param.metavar}`" if param.metavar and param.param_type_name != "argument" else ""
    words = " ".join((param.help or "").split()).replace("|", "\\|").replace("<", "&lt;")
    words = re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", words)  # no line ends in its hyphens
    return f"| {names}{value} | {words} |"
