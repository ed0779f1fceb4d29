"""Figures as SVG: well formed, of the right sizes, and what a notebook keeps of a figure."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from tests.inspect.small_models import model_and_inputs
from torchfake import fake_mode
from torchfake.inspect import estimate, summary
from torchfake.inspect.figures import drawing
from torchfake.inspect.figures.plotly_figures import PLOTLY
from torchfake.inspect.figures.svg import curve_svg, icicle_svg, standalone
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.records.units import bytes_text

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def step() -> Estimate:
    model, inputs = model_and_inputs("llama")
    return estimate(model, inputs, optimizer="adamw", gpu="h100-80gb")


def share(text: str | None) -> float:
    assert text is not None
    return float(text.removesuffix("%")) / 100


def test_an_icicle_has_each_module_as_wide_as_its_value() -> None:
    with fake_mode():
        model = nn.Sequential(nn.Linear(10, 30, bias=False), nn.Linear(10, 10, bias=False))
    root = ET.fromstring(icicle_svg(drawing.parameters_icicle(summary(model))))
    blocks = root.findall(f"{SVG}svg")
    assert [share(block.get("width")) for block in blocks] == [1.0, 0.75, 0.25]
    assert [share(block.get("x")) for block in blocks] == [0.0, 0.0, 0.75]
    assert blocks[0].findtext(f"{SVG}text") == "Sequential 1.60 kB"


def test_equal_layers_are_one_block_at_the_peak_as_wide_as_all() -> None:
    sizes = {"": 100, "layers": 90, "layers.2": 30, "layers.10": 30, "layers.3": 30}
    assert [tuple(b) for b in drawing._peak_blocks(sizes, "Net")] == [
        ("Net", "", "Net", 100, 1),
        ("layers", "Net", "layers", 90, 1),
        ("layers.2-10", "layers", "2-10", 90, 3),
    ]


def test_what_no_block_has_is_the_rest() -> None:
    blocks = drawing._peak_blocks({"": 100, "a": 60}, "Net")
    root = ET.fromstring(icicle_svg(drawing.Icicle("", blocks, str)))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["Net 100", "a 60", "rest 40"]


def test_a_label_without_room_is_left_out_not_cut() -> None:
    name = "a_long_name_of_a_module"
    blocks = drawing._peak_blocks({"": 100, name: 10, "b": 90}, "Net")
    root = ET.fromstring(icicle_svg(drawing.Icicle("", blocks, str)))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["Net 100", "b 90"]


def test_a_curve_is_described_stretch_by_stretch(step: Estimate) -> None:
    curve = drawing.memory_curve(step)
    assert 100 < len(curve.slices) <= drawing.MAX_SLICES
    assert curve.slices[0].first == 0
    assert all(a.end == b.first for a, b in itertools.pairwise(curve.slices))
    assert any(s.text.startswith("backward, model.layers.") for s in curve.slices)


def test_names_are_escaped() -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("<script>&", nn.Linear(3, 3))

    text = icicle_svg(drawing.parameters_icicle(summary(Bad())))
    assert "<script>" not in text
    assert ET.fromstring(text).tag == f"{SVG}svg"


def test_a_curve_has_an_area_for_each_category_and_the_peak(step: Estimate) -> None:
    curve = drawing.memory_curve(step)
    root = ET.fromstring(curve_svg(curve))
    areas = root.findall(f".//{SVG}path")
    titles = [area.findtext(f"{SVG}title") for area in areas]
    used = [c for i, c in enumerate(curve.categories) if curve.num_bytes[:, i].any()]
    assert titles == used
    assert all((area.get("d") or "").endswith("Z") for area in areas)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert curve.peak_text in texts
    assert {"backward", "optimizer"} <= set(texts)


def test_a_curve_reaches_its_peak_with_the_workspaces_of_cublas() -> None:
    layer, x = nn.Linear(8, 8), torch.rand(2, 8)
    step = estimate(layer, x, optimizer="sgd", gpu="a100-80gb", workspace_bytes=2**20)
    curve = drawing.memory_curve(step)
    assert step.workspace_bytes > step.peak_bytes / 2
    assert curve.num_bytes.sum(axis=1).max() == step.peak_bytes
    assert f"workspace {bytes_text(step.workspace_bytes)}" in curve.slices[0].text
    assert drawing.peak_icicle(step).blocks[0].value == step.peak_bytes
    assert f"start: {bytes_text(int(curve.num_bytes[0].sum()))}" in curve.slices[0].text


def test_a_step_without_allocations() -> None:
    assert ET.fromstring(curve_svg(drawing.memory_curve(estimate(nn.Identity(), 1)))) is not None


def test_what_a_notebook_keeps(step: Estimate) -> None:
    """Plotly's data for a notebook that runs, a picture for one that does not."""
    bundle = step.plot()._repr_mimebundle_()
    assert set(bundle) == {PLOTLY, "image/svg+xml", "text/plain"}
    assert ET.fromstring(bundle["image/svg+xml"]).tag == f"{SVG}svg"
    assert bundle[PLOTLY]["layout"]["title"]["text"].startswith("Memory held")
    formatted, _ = (
        pytest.importorskip("IPython.core.formatters").DisplayFormatter().format(step.plot())
    )
    assert formatted == bundle  # and no HTML, which would ask the network for plotly's script


def test_a_figure_as_a_file_has_a_background_light_and_dark(step: Estimate) -> None:
    inside = curve_svg(drawing.memory_curve(step))
    root = ET.fromstring(standalone(inside, 700))
    assert (root.get("width"), root.get("class")) == ("700", "tf-figure")
    assert root[0].tag == f"{SVG}title"
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")
    assert root.find(f"{SVG}rect").get("class") == "paper"
    assert "tf-figure" not in inside


def test_what_no_module_has_made_is_named_by_its_category(step: Estimate) -> None:
    root, *others = drawing.peak_icicle(step).blocks
    upper = {block.label: block.value for block in others if block.parent == root.name}
    assert upper.get("workspace", 0) == step.workspace_bytes
    assert sum(upper.values()) <= root.value == step.peak_bytes
    assert sum(upper.values()) > 0.99 * root.value


def test_the_memory_of_a_gpu_is_in_the_figure_unless_it_is_much_more_than_the_peak() -> None:
    layer, x = nn.Linear(8, 8), torch.rand(2, 8)
    texts = []
    for gigabytes in (1, 60):
        step = estimate(layer, x, gpu="a100-80gb", workspace_bytes=gigabytes * 10**9)
        root = ET.fromstring(curve_svg(drawing.memory_curve(step)))
        texts.append([text.text for text in root.iter(f"{SVG}text")])
    small, large = texts
    assert "83.9 GB usable" in large
    assert not any("usable" in (text or "") for text in small)
