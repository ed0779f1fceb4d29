"""Graphs of a page: they fold, zoom, find modules, and light what the pointer is on."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import transformers

from torchfake import example_inputs, fake_mode, graph_of, report

pytest.importorskip("playwright")
FEW = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which all 96 boxes are drawn, in 23 frames, some in others."""
    config = transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=3, vocab_size=50)
    with fake_mode():
        model = transformers.T5ForConditionalGeneration(config)
    graph = graph_of(model, example_inputs(model, batch=1, seq=8), depth=9, fold=False)
    return report(graph, tmp_path_factory.mktemp("graph") / "graph.html")


@pytest.fixture
def page(browser: Any, path: Path) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    opened.route("http*://**/*", lambda route: pytest.fail(route.request.url))
    opened.goto(path.as_uri())
    yield opened
    opened.close()


def boxes(page: Any) -> int:
    return int(page.locator("[data-n]:not(.hidden)").count())


def test_it_begins_with_few_boxes(page: Any) -> None:
    assert 4 < boxes(page) <= FEW
    assert page.locator("[data-n]").count() > 2 * FEW


def test_it_begins_whole_in_view(page: Any) -> None:
    view, drawn = (page.locator(found).bounding_box() for found in (".graph", "svg.tfg"))
    assert drawn["width"] <= view["width"]
    assert drawn["height"] <= view["height"]


def test_a_click_unfolds_a_frame_and_another_folds_it(page: Any) -> None:
    before, first = boxes(page), page.locator("[aria-expanded=false]:not(.hidden)").first
    frame = page.locator(f'[data-n="{first.get_attribute("data-n")}"]')
    tall = page.locator("svg.tfg").bounding_box()["height"]
    title = frame.locator("text").first
    title.click()
    assert boxes(page) > before
    assert page.locator("svg.tfg").bounding_box()["height"] >= tall
    title.click()
    assert boxes(page) == before
    assert page.locator("svg.tfg").bounding_box()["height"] == tall


def test_the_keyboard_folds_too(page: Any) -> None:
    before = boxes(page)
    page.locator("[aria-expanded=false]:not(.hidden)").first.press("Enter")
    assert boxes(page) > before


def test_boxes_stay_apart_and_in_their_frames(page: Any) -> None:
    page.get_by_text("Unfold all").click()
    for _ in range(2):
        found = page.evaluate("""() => {
          const seen = [...document.querySelectorAll("[data-n]:not(.hidden)")];
          const rects = (g) => [...g.querySelectorAll(":scope > rect")];
          const box = (g) => rects(g).at(-1).getBoundingClientRect();
          const leaves = seen.filter((g) => g.dataset.open === undefined).map(box);
          const apart = leaves.every((a, i) => leaves.slice(i + 1).every((b) =>
            a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top));
          const inside = seen.filter((g) => g.dataset.p).every((g) => {
            const own = box(g), around = box(document.querySelector(`[data-n="${g.dataset.p}"]`));
            return own.left >= around.left && own.right <= around.right + 1
              && own.top >= around.top && own.bottom <= around.bottom + 1;
          });
          return [apart, inside];
        }""")
        assert found == [True, True]
        page.locator("[aria-expanded=true]").nth(3).locator("text").first.click()


def test_search_unfolds_what_it_finds(page: Any) -> None:
    page.get_by_label("find a module").fill("decoder.block.2.layer.2.densereludense.wo")
    found = page.locator(".found:not(.hidden)")
    assert found.count() == 1
    assert found.first.is_visible()
    assert page.locator(".tools [role=status]").inner_text() == "1 found"
    page.get_by_label("find a module").fill("nothing of that name")
    assert page.locator(".tools [role=status]").inner_text() == "no match"


def test_a_line_lights_its_ends(page: Any) -> None:
    page.get_by_text("Unfold all").click()
    line = page.locator("[data-e]:has(.e)").first
    line.dispatch_event("pointerover")
    assert line.evaluate("line => line.classList.contains('hot')")
    ends = line.get_attribute("data-e").split(" ")[0].split("-")
    for end in ends:
        assert "hot" in (page.locator(f'[data-n="{end}"]').get_attribute("class") or "")


def test_it_zooms_and_is_moved_by_dragging(page: Any) -> None:
    page.get_by_text("Unfold all").click()
    wide = page.locator("svg.tfg").bounding_box()["width"]
    page.get_by_label("zoom in").click()
    assert page.locator("svg.tfg").bounding_box()["width"] > 1.2 * wide
    at = page.locator(".graph").bounding_box()
    page.mouse.move(at["x"] + 300, at["y"] + 300)
    page.mouse.down()
    page.mouse.move(at["x"] + 250, at["y"] + 100)
    page.mouse.up()
    assert page.evaluate("document.querySelector('.graph').scrollTop") == 200


def test_its_code_is_small() -> None:
    folder = files("torchfake.inspect.figures")
    assert sum(len((folder / name).read_bytes()) for name in ("page.js", "page.css")) < 200_000
