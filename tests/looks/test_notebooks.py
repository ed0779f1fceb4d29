"""Outputs of notebooks, in the style sheets of JupyterLab and VS Code, light and dark.

Colab's style sheets are in no registry. ``LOOKS_SHOTS`` names a folder for pictures of the pages.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.examples.notebooks import NOTEBOOKS, code_cells, read
from tests.inspect.compared_models import stack
from tests.inspect.small_models import model_and_inputs
from tests.looks.frames import PROGRAMS, THEMES, framed
from tests.looks.geometry import CUT_NUMBERS, axe_findings
from torchfake import check, diff, estimate, fit, summary
from torchfake.distributed import plan
from torchfake.inspect import weights

WIDTH = 1000


@cache
def record(name: str) -> Any:
    model, inputs = model_and_inputs("llama")
    make: dict[str, Callable[[], Any]] = {
        "summary": lambda: summary(model, inputs),
        "estimate": lambda: estimate(model, inputs, optimizer="adamw", gpu="h100-80gb"),
        "fits": lambda: fit(record("estimate"), "h100-80gb", "t4-16gb", vary=None),
        "checked": lambda: check(nn.Linear(3, 4), torch.ones(2, 3)),
        "diff": lambda: diff(stack(), stack(16, 5, bias=False)),
        "plan": sharded,
        "weights": lambda: weights(model, "nf4", "h100-80gb", "t4-16gb"),
    }
    return make[name]()


RECORDS = ("summary", "estimate", "fits", "checked", "diff", "plan", "weights")


def sharded() -> Any:
    return plan(
        lambda: nn.Linear(64, 64),
        mesh_shape=4,
        mesh_dim_names=("dp",),
        parallelize=lambda module, mesh: fully_shard(module, mesh=mesh),
        inputs=lambda: torch.empty(1, 64),
        gpu="h100-80gb",
    )


@pytest.fixture(params=[f"{program} {theme}" for program in PROGRAMS for theme in THEMES])
def seen(request: pytest.FixtureRequest, browser: Any) -> Any:
    """A function that opens a page with the output of a record, or with another output."""
    program, theme = request.param.split()
    page = browser.new_page(viewport={"width": WIDTH, "height": 700}, color_scheme=theme)

    def seen(name: str, output: str = "") -> Any:
        page.set_content(framed(output or record(name)._repr_html_(), program, theme))
        if shots := os.environ.get("LOOKS_SHOTS"):
            Path(shots).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{shots}/{name}-{program}-{theme}.png", full_page=True)
        return page

    yield seen
    page.close()


BOXES = """(selector) => [...document.querySelectorAll(selector)].map((element) => {
  const range = document.createRange();
  range.selectNodeContents(element);
  const text = range.getBoundingClientRect(), box = element.getBoundingClientRect();
  return {text: element.textContent, left: text.left, right: text.right, box_left: box.left,
    box_right: box.right, top: box.top, bottom: box.bottom};
})"""
"""Where elements are, and the texts in them."""


def boxes(page: Any, selector: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate(BOXES, selector)
    return found


@pytest.mark.parametrize("name", RECORDS)
def test_texts_begin_at_the_left(seen: Any, name: str) -> None:
    for found in boxes(seen(name), ".tf td:not(.num), .tf tbody th"):
        indent = 40 if found["text"] else 0
        assert found["left"] - found["box_left"] <= indent


def test_numbers_end_at_the_right_of_their_column(seen: Any) -> None:
    page = seen("fits")
    for column in (2, 3, 4, 5):
        cells = boxes(page, f".tf .grid tr > :nth-child({column})")
        assert len(cells) == 3
        assert max(c["right"] for c in cells) - min(c["right"] for c in cells) < 1


def test_parts_are_indented(seen: Any) -> None:
    names = {found["text"]: found["left"] for found in boxes(seen("estimate"), ".tf th")}
    assert names["parameters"] - names["peak"] >= 8


def test_a_bar_begins_beside_its_number(seen: Any) -> None:
    page = seen("estimate")
    numbers, bars = boxes(page, ".tf .part"), boxes(page, ".tf .bar")
    assert len(numbers) == len(bars) >= 5
    assert len({bar["box_left"] for bar in bars}) == 1
    for number, bar in zip(numbers, bars, strict=True):
        assert 0 < bar["box_left"] - number["right"] < 80
        assert number["top"] <= bar["bottom"]
        assert bar["top"] <= number["bottom"]


def test_a_line_is_beside_its_name(seen: Any) -> None:
    page = seen("estimate")
    for name, text in zip(boxes(page, ".tf th"), boxes(page, ".tf td"), strict=True):
        assert abs(name["top"] - text["top"]) < 1
    widest = max(found["right"] for found in boxes(page, ".tf th"))
    assert 0 < text["left"] - widest < 40


def test_columns_of_a_tree_stand_under_their_header(seen: Any) -> None:
    page = seen("summary")
    header = page.locator(".tf .row").first.locator("> span").count()
    assert page.locator(".tf .row.head > span:visible").count() > 4
    for column in range(2, header + 1):
        cells = boxes(page, f".tf .row > :nth-child({column})")
        shown = [cell for cell in cells if cell["bottom"] > cell["top"]]
        assert len({round(cell["box_left"]) for cell in shown}) <= 1


@pytest.mark.parametrize("width", [400, 500, 700, 1000])
def test_numbers_of_a_tree_are_whole(seen: Any, width: int) -> None:
    page = seen("summary")
    page.set_viewport_size({"width": width, "height": 700})
    assert not page.evaluate(CUT_NUMBERS)
    heads = page.locator(".tf .row.head > .num:visible").all_text_contents()
    assert {"parameters", "bytes"} <= set(heads)
    note = page.locator(".tf p.dim", has_text="left out at this width").inner_text()
    assert "tensors" in note
    assert not set(heads) & set(note.partition(": ")[2].split(", "))


@pytest.mark.parametrize("name", RECORDS)
def test_nothing_makes_the_notebook_wider(seen: Any, name: str) -> None:
    page = seen(name)
    page.set_viewport_size({"width": 500, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 500


def test_axe_finds_nothing_serious(seen: Any) -> None:
    """Contrast, headers of tables, roles: of all records, and of what the notebooks store."""
    fragments = [record(name)._repr_html_() for name in RECORDS] + stored_fragments()
    page = seen("all", "".join(fragments))
    assert not axe_findings(page)
    page.set_viewport_size({"width": 400, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert not axe_findings(page)


def stored_fragments() -> list[str]:
    """The records that the notebooks of examples/ store as HTML."""
    outputs = [
        output.get("data", {}).get("text/html", "")
        for notebook in NOTEBOOKS
        for cell in code_cells(read(notebook))
        for output in cell.outputs
    ]
    found = [text for text in outputs if 'class="tf"' in text]
    assert len(found) > 8
    return found
