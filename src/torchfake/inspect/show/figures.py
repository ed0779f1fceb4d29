"""Records as plotly figures: icicles of a module's tree, and memory over time.

Input: a Summary, an Estimate. Output: figures, which show themselves in a notebook and go into a
page. Invariant: a figure has a bounded number of points, whatever the model, and no
markup from names, which plotly would interpret. Called by:
``base_record.figure``, which imports this file, and ``show/page``; plotly is imported by the first
figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from torchfake.errors import MissingExtraError
from torchfake.inspect.base_record import figure
from torchfake.inspect.describe import units
from torchfake.inspect.describe.module_names import join_name, name_and_ancestors
from torchfake.inspect.estimates import Estimate
from torchfake.inspect.run.lifetimes import PHASES
from torchfake.inspect.show.html import COLORS, escape
from torchfake.inspect.summary import Summary
from torchfake.inspect.tree import ModuleNode

MAX_EVENTS = 1200
"""Events shown along a timeline."""

MAX_BLOCKS = 2000
"""Blocks of an icicle, in order of their level."""


@figure.register
def _(found: Summary) -> Any:
    return icicle(
        found,
        lambda node, times, names: times * node.size.parameter_bytes,
        units.bytes_text,
        "Bytes of parameters by module",
    )


def flops_figure(summary: Summary) -> Any:
    """Operations by module, forward and backward added, as an icicle."""
    return icicle(
        summary,
        lambda node, times, names: times * sum(summary.flops_of(names)) // len(names),
        units.flops_text,
        "Operations by module, forward and backward",
    )


def peak_figure(estimate: Estimate) -> Any:
    """Bytes held at the peak by module, as an icicle."""
    sizes: dict[str, int] = {"": 0}
    for name, own in estimate.by_module.items():
        for ancestor in name_and_ancestors(name):
            sizes[ancestor] = sizes.get(ancestor, 0) + sum(own.values())
    names = sorted(sizes, key=lambda name: (name.count(".") + bool(name), name))[:MAX_BLOCKS]
    root = estimate.class_name
    blocks = [
        (name or root, (name.rpartition(".")[0] or root) if name else "", name or root, sizes[name])
        for name in names
    ]
    return _icicle(blocks, units.bytes_text, "Bytes held at the peak, by module")


Block = tuple[str, str, str, int]
"""Name, parent's name, label and value."""

Value = Callable[[ModuleNode, int, list[str]], int]
"""The value of a node. The count is of all modules that it stands for; the full names are of those
under one parent."""


def icicle(summary: Summary, value: Value, value_text: Callable[[int], str], title: str) -> Any:
    """The tree of a summary with values as widths, the root on top."""
    return _icicle(_blocks(summary.tree, value), value_text, title)


def _icicle(blocks: list[Block], value_text: Callable[[int], str], title: str) -> Any:
    trace = _plotly().Icicle(
        ids=[escape(name) for name, *_ in blocks],
        parents=[escape(parent) for _, parent, *_ in blocks],
        labels=[escape(label) for *_, label, _ in blocks],
        values=[size for *_, size in blocks],
        text=[value_text(size) for *_, size in blocks],
        textinfo="label+text",
        hovertemplate="%{id}<br>%{label}<br>%{text}<extra></extra>",
        branchvalues="total",
        tiling={"orientation": "v"},
        marker={"colorscale": "Blues"},
        maxdepth=6,
    )
    return _framed([trace], title, height=520)


def _blocks(tree: ModuleNode, value: Value) -> list[Block]:
    """The blocks of a tree, level by level."""
    blocks: list[Block] = []
    level = [(tree, "", "", "", 1)]  # node, block's parent, path of its parent, shown path, count
    while level:
        next_level = []
        for node, parent, path, shown_path, count in level:
            count *= node.repeat
            names = [join_name(path, name) for name in node.names]
            size = value(node, count, names)
            if len(blocks) >= MAX_BLOCKS or not size:
                continue
            shown = join_name(shown_path, node.name)
            label = f"{node.repeat} x {node.class_name}" if node.repeat > 1 else node.class_name
            name = shown or tree.class_name
            blocks.append((name, parent, f"{node.name} {label}".strip(), size))
            next_level += [(child, name, names[0], shown, count) for child in node.children]
        level = next_level
    return blocks


@figure.register
def _(found: Estimate) -> Any:
    timeline = found.timeline
    events = _shown_events(timeline.total, found.peak.event)
    traces = [
        _plotly().Scatter(
            x=events,
            y=timeline.num_bytes[events, column],
            name=category,
            stackgroup="all",
            mode="lines",
            line={"width": 0, "shape": "hv"},
            fillcolor=COLORS[category],
        )
        for column, category in enumerate(timeline.categories)
    ]
    made = _framed(traces, f"Memory held in a step of {found.mode}", height=420)
    made.update_layout(
        xaxis_title="allocations and frees", yaxis={"title": "bytes", "tickformat": ".3s"}
    )
    for name, first, last in _phases(timeline.phase):
        made.add_vline(x=first, line={"width": 1, "dash": "dot"})
        made.add_annotation(x=(first + last) / 2, y=1.04, yref="paper", text=name, showarrow=False)
    height = int(timeline.total[found.peak.event]) if len(timeline.total) else 0
    made.add_annotation(
        x=found.peak.event, y=height, text=f"peak {units.bytes_text(found.peak_bytes)}"
    )
    return made


def _shown_events(total: np.ndarray[Any, Any], peak: int) -> np.ndarray[Any, Any]:
    """The events to show: in each range of events the one with most bytes held, and the peak."""
    if len(total) <= MAX_EVENTS:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), MAX_EVENTS, dtype=np.int64)
    found = [int(a + total[a:b].argmax()) for a, b in itertools.pairwise(edges)]
    return np.unique([*found, peak, len(total) - 1])


def _phases(phase: np.ndarray[Any, Any]) -> Iterator[tuple[str, int, int]]:
    """Each phase but the start, with its first event and its last."""
    for number in np.unique(phase).tolist():
        events = np.flatnonzero(phase == number)
        if PHASES[number] != "start":
            yield PHASES[number], int(events[0]), int(events[-1])


def _framed(traces: list[Any], title: str, *, height: int) -> Any:
    made = _plotly().Figure(traces)
    made.update_layout(
        title=title, height=height, margin={"l": 60, "r": 20, "t": 70, "b": 50}, template="none"
    )
    return made


def _plotly() -> Any:
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise MissingExtraError('figures need plotly: pip install "torchfake[viz]"') from error
    return plotly.graph_objects
