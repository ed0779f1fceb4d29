"""Reports, as people see them on a phone and on a desktop, in the light and in the dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inspect.small_models import model_and_inputs
from tests.looks.geometry import axe_findings, problems
from torchfake import graph_of, report
from torchfake.distributed import plan_target, search_servers, serve
from torchfake.inspect import estimate, fit, summary

pytest.importorskip("playwright")
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # torch warns of its own
SMALL = ("hidden_size=64", "intermediate_size=128", "num_hidden_layers=4", "vocab_size=256",
         "num_attention_heads=4", "num_key_value_heads=4")  # fmt: skip
VIEWS = [(width, theme) for width in (400, 1400) for theme in ("light", "dark")]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    model, inputs = model_and_inputs("llama")
    step = estimate(model, inputs, optimizer="adamw", gpu="h100-80gb")
    found, drawn = summary(model, inputs), graph_of(model, inputs, depth=3)
    several = fit(step, "h100-80gb", "t4-16gb", vary=None)
    planned = plan_target(
        "transformers:LlamaForCausalLM", mesh="dp=4,tp=2", seq=64, batch=8, overrides=SMALL
    )
    served = serve("transformers:LlamaForCausalLM", overrides=SMALL, gpu="h100-80gb", users=4,
                   context=128)  # fmt: skip
    searched = search_servers("transformers:LlamaForCausalLM", overrides=SMALL, gpu="h100-80gb",
                              gpus=2, users=4, context=128, tpot=1e-9)  # fmt: skip
    return {
        "search": report(searched, folder / "search.html"),
        "serve": report(served, folder / "serve.html"),
        "fit": report(found, several, drawn, folder / "fit.html"),
        "step": report(step, folder / "step.html"),
        "plan": report(planned, folder / "plan.html"),
    }


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda r: errors.append(r.url) if not r.url.startswith("file") else None)
    yield opened
    opened.close()
    assert not errors


def shown(page: Any, path: Path, width: int, theme: str = "light") -> Any:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=theme)
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize(("width", "theme"), VIEWS)
@pytest.mark.parametrize("name", ["fit", "step", "plan", "serve", "search"])
def test_nothing_is_cut_or_dim_or_too_wide(
    page: Any, reports: dict[str, Path], name: str, width: int, theme: str
) -> None:
    shown(page, reports[name], width, theme)
    assert not problems(page)
    assert not axe_findings(page)


def test_numbers_of_modules_are_in_view_on_a_phone(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["fit"], 400)
    number = page.locator(".tf .row:not(.head) > .num").first.bounding_box()
    assert number["x"] + number["width"] < 400


def test_a_table_of_modules_says_what_it_leaves_out(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["fit"], 400)
    heads = page.locator(".tf .row.head > .num:visible").all_text_contents()
    assert heads == ["parameters", "bytes"]
    note = page.locator(".tf p.dim", has_text="left out at this width").last.inner_text()
    assert {"output", "% of total"} <= set(note.partition(": ")[2].split(", "))
    wide = page.locator(".wide:has(.row)").first
    assert wide.evaluate("wide => wide.scrollWidth - wide.clientWidth") == 0


def test_a_shadow_says_that_a_table_goes_on(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["fit"], 400)
    style = "getComputedStyle(document.querySelector('.wide')).backgroundAttachment"
    assert page.evaluate(style) == "local, scroll, scroll"


def test_operations_of_modules_are_in_view_on_a_desktop(
    page: Any, reports: dict[str, Path]
) -> None:
    shown(page, reports["fit"], 1400)
    last = page.locator(".tf .row.head > .num").last
    assert last.text_content() == "FLOPs backward"
    box = last.bounding_box()
    assert box["x"] + box["width"] < 1400


def test_cards_are_on_one_line(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["fit"], 1400)
    cards = page.locator(".cards > div").all()
    assert len({card.bounding_box()["y"] for card in cards}) == 1


def test_numbers_of_bytes_are_beside_the_curve(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["step"], 400)
    labels = page.locator("section > svg > text[x='-6']").all()
    plot = page.locator("section > svg > svg[preserveAspectRatio]").bounding_box()
    assert len(labels) > 2
    assert all(b["x"] + b["width"] <= plot["x"] for b in (t.bounding_box() for t in labels))


@pytest.mark.parametrize("width", [400, 1400])
def test_names_over_the_curve_are_in_the_figure(
    page: Any, reports: dict[str, Path], width: int
) -> None:
    shown(page, reports["step"], width)
    figure = page.locator("section > svg:has(> svg[preserveAspectRatio])").bounding_box()
    labels = page.locator("section > svg > text[style]").all()
    assert len(labels) > 2
    for box in (label.bounding_box() for label in labels):
        assert box["x"] > figure["x"]
        assert box["x"] + box["width"] < figure["x"] + figure["width"]


def test_the_pointer_is_told_bytes_phase_and_module(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["step"], 1400)
    page.locator("section > svg > rect[data-tip]").nth(60).hover()
    words = page.locator("#tip").inner_text()
    assert "GB" in words or "MB" in words or "kB" in words
    assert "parameters" in words
    assert words.split(",")[0] in ("forward", "backward")


def test_a_filter_without_a_match_says_so(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["fit"], 400)
    page.get_by_label("filter modules").fill("mlp")
    assert "found" in page.locator(".tools [role=status]").first.inner_text()
    page.get_by_label("filter modules").fill("nothing of that name")
    assert page.locator(".tools [role=status]").first.inner_text() == "no match"


def test_a_rule_of_thumb_is_not_said_beside_a_step(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["fit"], 1400)
    assert "before activations" not in page.locator("body").inner_text()


def test_numbers_of_a_server_stand_beside_their_bars(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["serve"], 1400)
    numbers, bars = page.locator(".tf .part").all(), page.locator(".tf .bar").all()
    assert len(bars) >= 3
    for number, bar in zip(numbers, bars, strict=True):
        left, right = number.bounding_box(), bar.bounding_box()
        assert right["x"] - left["x"] < 120


def test_a_graph_fits_a_phone_and_is_legible(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["fit"], 400)
    scale, wide = page.evaluate("""() => {
      const drawn = document.querySelector("svg.tfg"), box = drawn.getBoundingClientRect();
      return [box.width / drawn.viewBox.baseVal.width, drawn.parentElement.scrollWidth];
    }""")
    assert scale >= 0.7
    assert wide <= 400


def test_the_verdict_is_one_sentence_said_once(page: Any, reports: dict[str, Path]) -> None:
    shown(page, reports["step"], 1400)
    words = page.locator("body").inner_text()
    assert words.count("to spare") == 1
    assert words.count("Fits: ") == 1
    assert "on NVIDIA H100" in words


def test_a_plan_has_its_ranks_their_memory_the_step_and_the_code(
    page: Any, reports: dict[str, Path]
) -> None:
    shown(page, reports["plan"], 1400)
    assert page.locator(".mesh td").count() == 8
    assert page.locator(".mesh td").nth(3).inner_text().split("\n") == ["3", "dp 1", "tp 1"]
    assert page.locator(".bars i").count()
    assert page.locator(".bars svg path").count()
    assert "def parallelize(model, mesh)" in page.locator("pre").last.inner_text()
