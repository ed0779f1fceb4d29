"""Registers how records look; what draws them is imported when a record is first shown.

Input: nothing. Output: loaders, registered with the functions of ``records/record`` for all kinds.
Invariant: ``import torchfake`` imports neither rich nor plotly, nor any file of this package but
this one and ``report``.
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
)

register_on_first_use(plain_text, Record, "torchfake.inspect.show.text")
register_on_first_use(renderables, Record, "torchfake.inspect.show.terminal")
register_on_first_use(html_fragment, Record, "torchfake.inspect.figures.html")
register_on_first_use(figure, Record, "torchfake.inspect.figures.plotly_figures")
register_on_first_use(plain_text, DataflowGraph, "torchfake.inspect.show.graph_text")
register_on_first_use(html_fragment, DataflowGraph, "torchfake.inspect.figures.graph_svg")
register_on_first_use(drawn_as, DataflowGraph, "torchfake.inspect.figures.graph_svg")
