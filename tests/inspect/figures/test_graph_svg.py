"""Graphs drawn: boxes apart from each other, lines around them, names as they are."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from torchfake import fake_mode, graph_of, report
from torchfake.inspect import DataflowGraph, example_inputs
from torchfake.inspect.figures.frames import Placed, drawing_of

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "llama.svg"


def llama_graph(**options: int) -> DataflowGraph:
    with fake_mode():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options)).bfloat16()
    return graph_of(model, example_inputs(model, batch=1, seq=128), depth=3)


def t5_graph() -> DataflowGraph:
    config = transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=3, vocab_size=50)
    with fake_mode():
        model = transformers.T5ForConditionalGeneration(config)
    return graph_of(model, example_inputs(model, batch=1, seq=8), depth=9)


def test_the_picture_in_the_docs_is_drawn_so() -> None:
    assert PICTURE.read_text() == llama_graph().to_svg() + "\n"


def test_eighty_layers_are_a_small_file() -> None:
    graph = llama_graph(num_hidden_layers=80)
    assert len(graph.to_svg()) < 100_000
    assert "80 x LlamaDecoderLayer" in graph.to_svg()


def overlap(a: Placed, b: Placed) -> bool:
    return (
        a.x < b.x + b.width
        and b.x < a.x + a.width
        and a.y < b.y + b.height
        and b.y < a.y + a.height
    )


@pytest.mark.parametrize("make", [llama_graph, t5_graph])
def test_boxes_and_lines_are_apart(make: object) -> None:
    drawing = drawing_of(make())  # type: ignore[operator]
    boxes = [box for box in drawing.boxes if not box.node.is_open]
    assert not any(overlap(a, b) for a, b in itertools.combinations(boxes, 2))
    for line in drawing.lines:
        for (x, y), (next_x, next_y) in itertools.pairwise(line.points):
            for box in boxes:
                inside = box.x < (x + next_x) / 2 < box.x + box.width
                between = box.y + 0.1 < (y + next_y) / 2 < box.y + box.height - 0.1
                assert not (inside and between), f"a line through {box.node.name}"
    for box in drawing.boxes:
        if box.node.parent is not None:
            frame = next(b for b in drawing.boxes if b.node.number == box.node.parent)
            assert frame.x < box.x
            assert box.x + box.width < frame.x + frame.width
            assert box.y + box.height < frame.y + frame.height


class Hostile(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


def test_names_are_escaped() -> None:
    model = nn.Sequential()
    model.add_module('a"<b>&\\', Hostile())
    graph = graph_of(model, torch.ones(2))
    texts = [element.text for element in ElementTree.fromstring(graph.to_svg()).iter()]
    assert any(text and text.startswith('a"<b>&\\') for text in texts)
    assert 'label="a\\"<b>&\\\\\\nHostile\\nfloat32[2]"' in graph.to_dot()


def test_a_notebook_and_a_page_have_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    graph = graph_of(model, torch.ones(1, 2))
    assert graph.to_svg() in graph._repr_html_()
    assert graph._repr_svg_() == graph.to_svg()
    page = report(model, torch.ones(1, 2), tmp_path / "page.html").read_text()
    assert "<h2>Dataflow</h2>" in page
    assert graph.to_svg() in page
    assert graph.to_svg() in report(graph, tmp_path / "graph.html").read_text()
