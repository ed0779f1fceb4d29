"""Records as plotly figures: icicles of a module's tree, and memory over time.

Input: a Summary, an Estimate. Output: figures, which a notebook displays, as SVG if it cannot run
scripts. Invariant: the data are those of ``drawing``; markup in names is escaped.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torchfake.errors import MissingExtraError
from torchfake.inspect.figures import drawing
from torchfake.inspect.figures.drawing import Curve, Icicle
from torchfake.inspect.figures.html import COLORS, escape
from torchfake.inspect.figures.svg import curve_svg, icicle_svg, standalone
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.records.record import figure
from torchfake.inspect.summary import Summary

PLOTLY = "application/vnd.plotly.v1+json"


@figure.register
def _(found: Summary) -> Any:
    return icicle(drawing.parameters_icicle(found))


@figure.register
def _(found: Estimate) -> Any:
    return curve(drawing.memory_curve(found))


def flops_figure(summary: Summary) -> Any:
    """Operations by module, forward and backward together, as an icicle."""
    return icicle(drawing.operations_icicle(summary))


def peak_figure(estimate: Estimate) -> Any:
    """Bytes held at the peak by module, as an icicle."""
    return icicle(drawing.peak_icicle(estimate))


def icicle(drawn: Icicle) -> Any:
    """A plotly figure of a tree with values as widths, the root on top."""
    blocks = drawn.blocks
    trace = graph_objects().Icicle(
        ids=[escape(block.name) for block in blocks],
        parents=[escape(block.parent) for block in blocks],
        labels=[escape(block.label) for block in blocks],
        values=[block.value for block in blocks],
        text=[drawn.text(block.value) for block in blocks],
        textinfo="label+text",
        hovertemplate="%{id}<br>%{label}<br>%{text}<extra></extra>",
        branchvalues="total",
        tiling={"orientation": "v"},
        marker={"colorscale": "Blues"},
        maxdepth=6,
    )
    return framed([trace], drawn.title, height=520, svg=icicle_svg(drawn))


def curve(drawn: Curve) -> Any:
    """A plotly figure of the bytes held over a step, the categories stacked."""
    traces = [
        graph_objects().Scatter(
            x=drawn.events,
            y=drawn.num_bytes[:, column],
            name=category,
            stackgroup="all",
            mode="lines",
            line={"width": 0, "shape": "hv"},
            fillcolor=COLORS[category],
        )
        for column, category in enumerate(drawn.categories)
    ]
    made = framed(traces, drawn.title, height=420, svg=curve_svg(drawn))
    made.update_layout(
        xaxis_title="allocations and frees", yaxis={"title": "bytes", "tickformat": ".3s"}
    )
    for name, first, last in drawn.phases:
        made.add_vline(x=first, line={"width": 1, "dash": "dot"})
        made.add_annotation(x=(first + last) / 2, y=1.04, yref="paper", text=name, showarrow=False)
    made.add_annotation(x=drawn.peak_event, y=drawn.peak_bytes, text=drawn.peak_text)
    return made


def framed(traces: list[Any], title: str, *, height: int, svg: str) -> Any:
    """A plotly figure, which notebooks store with an SVG of the same data."""
    made = graph_objects().Figure(traces)
    made.update_layout(
        title=title, height=height, margin={"l": 60, "r": 20, "t": 70, "b": 50}, template="none"
    )
    # plotly's own methods, which notebooks would call too, keep no picture or load a script
    made._ipython_display_ = made._repr_html_ = None
    made._repr_mimebundle_ = partial(_mime_bundle, made.to_plotly_json, title, svg)
    return made


def _mime_bundle(
    data: Any, title: str, svg: str, include: Any = None, exclude: Any = None
) -> dict[str, Any]:
    """The data that a notebook stores: plotly's, and an SVG for viewers that run no scripts."""
    import json

    from plotly.utils import PlotlyJSONEncoder

    plain = json.loads(json.dumps(data(), cls=PlotlyJSONEncoder))
    return {PLOTLY: plain, "image/svg+xml": standalone(svg), "text/plain": title}


def graph_objects() -> Any:
    """``plotly.graph_objects``.

    Raises:
        MissingExtraError: if plotly is not installed.
    """
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise MissingExtraError('figures need plotly: pip install "torchfake[viz]"') from error
    return plotly.graph_objects
