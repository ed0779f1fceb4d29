"""The sources of the site: the pages of docs/, the notebooks, the changelog and the reference.

Input: the repository. Output: a folder that Sphinx builds. Invariant: a link to a file that is a
page of the site leads to that page; a link to any other file leads to the repository's address.
Called by: ``build``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from docs.site import charts, reference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")

SECTIONS = {
    "guides": (
        "Guides",
        ("quickstart", "concepts", "inspect", "memory", "time", "serving", "distributed/plan",
         "deferred_init", "materialize", "distributed/index", "distributed/*", "fake_devices",
         "tracing", "migrating", "ecosystem"),
    ),
    "notebooks": ("Notebooks", ("examples/*",)),
    "names": ("Reference", ("reference/fakes", "reference/inspecting", "reference/deferred",
                            "reference/command-line", "reference/*", "api", "limits")),
    "figures": ("Figures", ("performance",)),
    "project": ("Project", ("changelog", "contributing", "security", "design", "adding_an_op")),
}  # fmt: skip
"""The sections: the file of each, its heading, its pages. Pages that none names are guides."""

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCED = re.compile(r"^(```+).*?^\1\s*$", re.DOTALL | re.MULTILINE)


def assemble(folder: Path) -> None:
    """Write all sources into an empty folder."""
    pages = _pages()
    for source, target in pages.items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".ipynb"):
            path.write_text(_notebook(source, pages))
        else:
            path.write_text(relinked((ROOT / source).read_text(), source, pages))
    images = ROOT / "docs" / "images"
    if images.is_dir():
        shutil.copytree(images, folder / "images")
    reference.write(folder / "reference")
    _write_sections(folder)


def _pages() -> dict[str, str]:
    """The files that are pages, and their names in the site, as paths from either root."""
    docs = {p for p in (ROOT / "docs").rglob("*.md") if FOLDER not in p.parents}
    pages = {str(p.relative_to(ROOT)): str(p.relative_to(ROOT / "docs")) for p in sorted(docs)}
    pages |= {name: name.lower() for name in ROOT_PAGES if (ROOT / name).exists()}
    notebooks = sorted((ROOT / "examples").glob("*.ipynb"))
    return pages | {str(p.relative_to(ROOT)): f"examples/{p.name}" for p in notebooks}


def relinked(text: str, source: str, pages: dict[str, str]) -> str:
    """The text of a page with its links as they are in the site; code blocks stay as they are."""
    parts, last = [], 0
    for block in _FENCED.finditer(text):
        parts += [_relinked(text[last : block.start()], source, pages), block.group()]
        last = block.end()
    return "".join([*parts, _relinked(text[last:], source, pages)])


def _relinked(text: str, source: str, pages: dict[str, str]) -> str:
    def link(match: re.Match[str]) -> str:
        words, address = match.groups()
        return f"[{words}]({_address(address, source, pages)})"

    return _LINK.sub(link, text)


def _address(address: str, source: str, pages: dict[str, str]) -> str:
    path, mark, anchor = address.partition("#")
    if not path or ":" in path:
        return address
    wanted = os.path.normpath(os.path.join(os.path.dirname(source), path))
    if wanted in pages:
        here = os.path.dirname(pages[source])
        return os.path.relpath(pages[wanted], here or ".") + mark + anchor
    if wanted.startswith("docs/images/"):
        return os.path.relpath(wanted.removeprefix("docs/"), os.path.dirname(pages[source]) or ".")
    if not (ROOT / wanted).exists():
        raise SystemExit(f"{source} links to {address}, which does not exist")
    kind = "tree" if (ROOT / wanted).is_dir() else "blob"
    return f"{repository()}/{kind}/main/{wanted}{mark}{anchor}"


def repository() -> str:
    """The repository's address, as the metadata have it."""
    return str(metadata()["urls"]["Homepage"])


def metadata() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _notebook(source: str, pages: dict[str, str]) -> str:
    notebook = json.loads((ROOT / source).read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = relinked("".join(cell["source"]), source, pages)
    return json.dumps(notebook)


def _write_sections(folder: Path) -> None:
    """Write a page for each section, and the contents of the first page."""
    kinds = (".md", ".ipynb", ".rst")
    paths = [p.relative_to(folder) for p in sorted(folder.rglob("*")) if p.suffix in kinds]
    left = [str(p.with_suffix("")) for p in paths if str(p) != "index.md"]
    sections: dict[str, list[str]] = {}
    for name, (_, patterns) in SECTIONS.items():
        found = [n for pattern in patterns for n in left if fnmatchcase(n, pattern)]
        sections[name] = list(dict.fromkeys(found))
        left = [n for n in left if n not in sections[name]]
    sections["guides"] += left
    for name, pages in sections.items():
        text = f"# {SECTIONS[name][0]}\n"
        if name == "figures":
            text = charts.figures(ROOT / "docs")
        (folder / f"{name}.md").write_text(text + _contents(pages))
    index = folder / "index.md"
    index.write_text(index.read_text() + _contents(list(sections), ":hidden:"))


def _contents(pages: list[str], *options: str) -> str:
    """A table of contents, in the directive of MyST."""
    lines = ["", "```{toctree}", ":maxdepth: 1", *options, "", *pages, "```", ""]
    return "\n".join(lines)
