"""What was found as plotly figures.

Enters: a Summary, an Estimate. Leaves: figures, which show themselves in a notebook and go into a
page. Invariant: a figure has a bounded number of points, whatever the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import singledispatch
from typing import Any

import numpy as np

from torchfake.errors import MissingExtraError
from torchfake.inspect import units
from torchfake.inspect.html import COLORS
from torchfake.inspect.ledger import PHASES
from torchfake.inspect.memory import Estimate
from torchfake.inspect.summary import Summary
from torchfake.inspect.tree import ModuleNode, joined, with_those_above

MAX_MOMENTS = 1200
"""Points along a timeline."""

MAX_BLOCKS = 2000
"""Blocks of an icicle, the first ones level by level."""


@singledispatch
def figure(found: Any) -> Any:
    """The plotly figure of what was found.

    Raises:
        TypeError: if there is none of such a record.
    """
    raise TypeError(f"there is no figure of a {type(found).__name__}")


@figure.register
def _(found: Summary) -> Any:
    return icicle(
        found,
        lambda node, times, names: times * node.size.parameter_bytes,
        units.bytes_text,
        "Bytes of parameters by module",
    )


def flops_figure(summary: Summary) -> Any:
    """Operations by module, forward and backward together, as an icicle."""
    return icicle(
        summary,
        lambda node, times, names: times * sum(summary.flops_of(names)) // len(names),
        units.flops_text,
        "Operations by module, forward and backward",
    )


def peak_figure(estimate: Estimate) -> Any:
    """What is held at the peak by module, as an icicle."""
    sizes: dict[str, int] = {"": 0}
    for name, own in estimate.by_module.items():
        for upper in with_those_above(name):
            sizes[upper] = sizes.get(upper, 0) + sum(own.values())
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
"""Of a node that stands for so many modules in all, of which these are under one parent."""


def icicle(summary: Summary, value: Value, said: Callable[[int], str], title: str) -> Any:
    """A tree in which widths are values, the root on top."""
    return _icicle(_blocks(summary.tree, value), said, title)


def _icicle(blocks: list[Block], said: Callable[[int], str], title: str) -> Any:
    trace = _plotly().Icicle(
        ids=[name for name, *_ in blocks],
        parents=[parent for _, parent, *_ in blocks],
        labels=[label for *_, label, _ in blocks],
        values=[size for *_, size in blocks],
        text=[said(size) for *_, size in blocks],
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
    found: list[Block] = []
    level = [(tree, "", "", "", 1)]
    while level:
        below = []
        for node, parent, above, shown_above, times in level:
            times *= node.repeat
            names = [joined(above, name) for name in node.names]
            size = value(node, times, names)
            if len(found) >= MAX_BLOCKS or not size:
                continue
            shown = joined(shown_above, node.name)
            label = f"{node.repeat} x {node.class_name}" if node.repeat > 1 else node.class_name
            name = shown or tree.class_name
            found.append((name, parent, f"{node.name} {label}".strip(), size))
            below += [(child, name, names[0], shown, times) for child in node.children]
        level = below
    return found


@figure.register
def _(found: Estimate) -> Any:
    timeline = found.timeline
    moments = _moments(timeline.total, found.peak.event)
    traces = [
        _plotly().Scatter(
            x=moments,
            y=timeline.num_bytes[moments, column],
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
        xaxis_title="births and deaths of storages", yaxis={"title": "bytes", "tickformat": ".3s"}
    )
    for name, first, last in _phases(timeline.phase):
        made.add_vline(x=first, line={"width": 1, "dash": "dot"})
        made.add_annotation(x=(first + last) / 2, y=1.04, yref="paper", text=name, showarrow=False)
    height = int(timeline.total[found.peak.event]) if len(timeline.total) else 0
    made.add_annotation(
        x=found.peak.event, y=height, text=f"peak {units.bytes_text(found.peak_bytes)}"
    )
    return made


def _moments(total: np.ndarray[Any, Any], peak: int) -> np.ndarray[Any, Any]:
    """The events to show: of each stretch the one at which most was held, and the peak."""
    if len(total) <= MAX_MOMENTS:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), MAX_MOMENTS, dtype=np.int64)
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
