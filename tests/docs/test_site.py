"""The site's sources: each public name is in the reference, and each link leads to something."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from docs.site import assemble, charts, reference
from tests.docs.doc_blocks import blocks
from torchfake import errors

PAGES = [p for p in assemble._pages() if p.endswith(".md")]


def _anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST name them."""
    text = (assemble.ROOT / page).read_text()
    for block in blocks(text):
        text = text.replace(block.text, "")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in plain}


def _links(page: str) -> list[str]:
    text = assemble._FENCED.sub("", (assemble.ROOT / page).read_text())
    return [m[1] for m in assemble._LINK.findall(text) if ":" not in m[1].partition("#")[0]]


@pytest.mark.parametrize("page", [*PAGES, "README.md"])
def test_links_and_anchors_are_there(page: str) -> None:
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = (assemble.ROOT / page).parent / path if path else assemble.ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(str(target.resolve().relative_to(assemble.ROOT))), link


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_name_a_page_that_is_there(name: str) -> None:
    page, _, anchor = getattr(errors, name).page.partition("#")
    assert anchor in _anchors(f"docs/{page}")


def test_every_public_name_is_in_the_reference() -> None:
    found = {n: set(names) for n, names in reference.names_by_module().items()}
    shown = {
        id(getattr(importlib.import_module(m), n)) for m, names in found.items() for n in names
    }
    for module in reference.MODULES:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            assert inspect.ismodule(value) or id(value) in shown, f"{module}.{name}"


def _functions() -> list[Any]:
    return [
        pytest.param(getattr(importlib.import_module(module), name), id=f"{module}.{name}")
        for module, names in reference.names_by_module().items()
        for name in names
        if inspect.isfunction(getattr(importlib.import_module(module), name))
    ]


@pytest.mark.parametrize("function", _functions())
def test_docstrings_describe_the_arguments(function: Any) -> None:
    """A function of several arguments describes each of them by name."""
    text = inspect.getdoc(function) or ""
    assert text
    names = [n for n in inspect.signature(function).parameters if n not in ("self", "args")]
    missing = [n for n in names if not re.search(rf"(?<!\w){re.escape(n)}(?!\w)", text)]
    assert not missing or len(names) == 1, missing


def test_links_become_those_of_the_site() -> None:
    pages = {"docs/inspect.md": "inspect.md", "examples/a.ipynb": "examples/a.ipynb"}
    text = "[a](../examples/a.ipynb#x) [b](../LICENSE)\n```\n[a](../LICENSE)\n```\n"
    found = assemble.relinked(text, "docs/inspect.md", pages)
    assert found.startswith("[a](examples/a.ipynb#x) [b](https://")
    assert found.endswith("blob/main/LICENSE)\n```\n[a](../LICENSE)\n```\n")
    with pytest.raises(SystemExit, match="links to nothing"):
        assemble.relinked("[c](nothing.md)", "docs/inspect.md", pages)


def test_broken_links_are_found(tmp_path: Path) -> None:
    from docs.site.build import broken_links

    (tmp_path / "a.html").write_text('<h1 id="x"></h1><a href="#x"></a><a href="#y"></a>')
    found = [line for line in broken_links(tmp_path) if not line.startswith("the page of")]
    assert found == ["a.html links to #y, which is not there"]


def test_a_notebook_with_the_name_of_a_guide_is_among_the_notebooks(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    for name in ("index.md", "serving.md", "examples/serving.ipynb"):
        (tmp_path / name).touch()
    assemble._write_sections(tmp_path)
    assert "\nexamples/serving\n" in (tmp_path / "notebooks.md").read_text()
    assert "examples/serving" not in (tmp_path / "guides.md").read_text()


def test_each_figure_has_the_numbers_of_its_table() -> None:
    page = charts.figures(assemble.ROOT / "docs")
    assert page.count("<svg ") == 7
    titles = re.findall(r"^## (.*)", page, re.MULTILINE)
    assert [title.split(",")[0] for title in titles[:4]] == [
        "Memory",
        "Throughput of training",
        "Serving",
        "Building a model",
    ]
    assert page.count(", log scale</text>") == 4
    table = (assemble.ROOT / "docs" / "performance.md").read_text()
    row = re.search(r"^\| gelu \| ([\d.]+) \|", table, re.MULTILINE)
    assert row is not None
    assert f"gelu: torchfake {float(row[1]):g}" in page


def test_each_option_of_a_command_is_in_the_reference() -> None:
    page = "\n".join(reference._command_pages())
    assert page.index("## torchfake diff") < page.index("## torchfake plan")
    assert re.search(r"^\| `--train`.* \|", page, re.MULTILINE)
