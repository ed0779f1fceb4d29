"""Registers how records are displayed; the code that does so is imported on first use.

Input: nothing. Output: loaders for all kinds of records, registered with the functions of
``records/record``. Invariant: ``import torchfake`` imports neither rich nor plotly, and of ``show``
and ``figures`` only this file and ``report``.
"""

from torchfake.inspect.dataflow.model_graph import DataflowGraph
from torchfake.inspect.records.record import (
    Record,
    drawn_as,
    figure,
    html_fragment,
    plain_text,
    register_on_first_use,
    renderables,
    shown,
)

register_on_first_use(shown, Record, "torchfake.inspect.show.text")
register_on_first_use(plain_text, Record, "torchfake.inspect.show.layout")
register_on_first_use(renderables, Record, "torchfake.inspect.show.terminal")
register_on_first_use(html_fragment, Record, "torchfake.inspect.figures.html")
register_on_first_use(figure, Record, "torchfake.inspect.figures.plotly_figures")
register_on_first_use(shown, DataflowGraph, "torchfake.inspect.show.graph_text")
register_on_first_use(html_fragment, DataflowGraph, "torchfake.inspect.figures.graph_svg")
register_on_first_use(drawn_as, DataflowGraph, "torchfake.inspect.figures.graph_svg")
