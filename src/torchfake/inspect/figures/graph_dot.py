"""A graph of modules in the DOT language of Graphviz.

Input: a DataflowGraph. Output: the text of a DOT file. Invariant: names are quoted; frames are
clusters.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfake.errors import printable
from torchfake.inspect.dataflow.model_graph import DataflowGraph, GraphEdge, GraphNode
from torchfake.inspect.show.graph_text import Labels, class_text, edge_text, notes, outputs_text

_SHAPES = {"module": "box", "function": "ellipse", "input": "invhouse", "output": "house"}


def graph_dot(graph: DataflowGraph) -> str:
    """The text of a DOT file for a graph."""
    lines = [
        f"digraph {_quoted(graph.class_name)} {{",
        "  compound=true; node [fontname=sans, fontsize=10]; edge [fontname=sans, fontsize=8];",
        *_nodes(graph, None, Labels(graph), "  "),
        *(f"  {_edge(edge)}" for edge in graph.edges),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _nodes(graph: DataflowGraph, parent: int | None, labels: Labels, indent: str) -> Iterator[str]:
    for node in graph.children.get(parent, []):
        label = _quoted("\n".join(_label(node, labels)))
        if not node.is_open:
            yield f"{indent}n{node.number} [shape={_SHAPES[node.kind]}, label={label}];"
            continue
        yield f"{indent}subgraph cluster_{node.number} {{"
        yield f"{indent}  label={label};"
        yield from _nodes(graph, node.number, labels, indent + "  ")
        yield f"{indent}}}"


def _label(node: GraphNode, labels: Labels) -> list[str]:
    found = [labels.short(node), class_text(node), *notes(node)]
    if not node.is_open:
        found.append(outputs_text(node.outputs))
    return [text for text in dict.fromkeys(found) if text]


def _edge(edge: GraphEdge) -> str:
    style = ", style=dashed, constraint=false" if edge.to_next else ""
    return f"n{edge.source} -> n{edge.target} [label={_quoted(edge_text(edge))}{style}];"


def _quoted(text: str) -> str:
    text = printable(text, keep="\n").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("\n", "\\n") + '"'
