"""A graph of modules as rows: one for each node, with the sources of its inputs.

Input: a DataflowGraph. Output: rows, text. Invariant: the rows have every node and every edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchfake.inspect.dataflow.model_graph import DataflowGraph, GraphEdge, GraphNode
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.tensor_specs import TensorSpec
from torchfake.inspect.records.units import bytes_text
from torchfake.inspect.show.rows import SHAPE, Block, Column, Row, as_lines

_COLUMNS = (
    Column("node"),
    Column("class", need=3, emphasis=SHAPE),
    Column("output", need=1),
    Column("bytes", unit=bytes_text, need=2),
    Column("parameters", unit="{:,}".format, need=5),
    Column("from", need=4, under="from "),
)


@shown.register
def _(found: DataflowGraph, *, depth: int | None = None) -> list[Block]:
    table = Block([*_rows(found, None, 0, Labels(found))], _COLUMNS)
    return [table, *[as_lines([("answered", found.answers)])] * bool(found.answers)]


def _rows(graph: DataflowGraph, parent: int | None, level: int, labels: Labels) -> Iterator[Row]:
    for node in graph.children.get(parent, []):
        values = (
            class_text(node),
            outputs_text(node.outputs),
            sum(spec.num_bytes for spec in node.outputs) if node.outputs else None,
            node.num_parameters if node.kind == "module" else None,
            labels.sources(node),
        )
        yield Row(labels.of(node), values, level)
        yield from _rows(graph, node.number, level + 1, labels)


class Labels:
    """The unique short names of the nodes of a graph."""

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self._into: dict[int, list[GraphEdge]] = {}
        for edge in graph.edges:
            self._into.setdefault(edge.target, []).append(edge)
        self._names: dict[int, str] = {}
        counts: dict[str, int] = {}
        for node in graph.nodes:
            name = self.short(node)
            counts[name] = counts.get(name, 0) + 1
            self._names[node.number] = name if counts[name] == 1 else f"{name} ({counts[name]})"

    def of(self, node: GraphNode) -> str:
        """The short name of a node, with a number if an earlier node has the same name."""
        return self._names[node.number]

    def short(self, node: GraphNode) -> str:
        """The name of a node without the name of the frame around it."""
        around = node.parent
        while around is not None:
            outer = self.graph.nodes[around]
            if outer.name and node.name.startswith(f"{outer.name}."):
                return node.name[len(outer.name) + 1 :]
            around = outer.parent
        if node.kind == "repeat":
            return f"{node.repeat} x"
        return node.name or node.class_name

    def sources(self, node: GraphNode) -> tuple[str, ...]:
        """The nodes that a node reads from, with shapes if they differ from the nodes' outputs."""
        return tuple(
            self._names[edge.source] + self._shape(edge) + (" of the previous one" * edge.to_next)
            for edge in self._into.get(node.number, [])
        )

    def _shape(self, edge: GraphEdge) -> str:
        known = self.graph.nodes[edge.source].outputs
        if all(spec in known for spec in edge.tensors):
            return ""
        return f" {outputs_text(edge.tensors)}"


def class_text(node: GraphNode) -> str:
    """The class of a node with its number of repetitions: ``32 x LlamaDecoderLayer``."""
    times = f"{node.repeat} x " if node.repeat > 1 and node.kind != "repeat" else ""
    return times + node.class_name if node.class_name else times.rstrip(" x")


def notes(node: GraphNode) -> list[str]:
    """Notes on a node: repeated calls, parallel repetitions, shared parameters."""
    found = []
    if node.kind == "module" and node.num_modules < node.num_calls:
        found.append(
            f"{node.num_calls} calls of {node.num_modules} module" + "s" * (node.num_modules > 1)
        )
    if node.repeat > 1 and not node.is_chain:
        found.append("side by side")
    if node.tied_to:
        found.append(f"shares parameters with {', '.join(node.tied_to)}")
    return found


def spec_text(spec: TensorSpec) -> str:
    """A spec as text, without the device: ``float32[2, 3]``."""
    return f"{spec.dtype}{list(spec.shape)}"


def outputs_text(specs: tuple[TensorSpec, ...]) -> str:
    """The first of several specs as text, and the number of the others: ``float32[2, 3] +1``."""
    if not specs:
        return ""
    return spec_text(specs[0]) + (f" +{len(specs) - 1}" if len(specs) > 1 else "")


def node_tooltip(node: GraphNode) -> str:
    """The tooltip of a node: name, class, notes, parameters and outputs, a line each."""
    lines: list[Any] = [f"{node.name} {class_text(node)}".strip(), *notes(node)]
    if node.num_parameters:
        lines.append(f"{node.num_parameters:,} parameters, {bytes_text(node.parameter_bytes)}")
    lines += [f"{spec_text(spec)} {bytes_text(spec.num_bytes)}" for spec in node.outputs[:8]]
    return "\n".join(lines)


def edge_text(edge: GraphEdge) -> str:
    """The tensors of an edge as text, with their bytes: ``float32[2, 3], 24 B``."""
    more = f" ({edge.num_tensors} tensors)" if edge.num_tensors > 1 else ""
    return f"{', '.join(map(spec_text, edge.tensors[:4]))}{more}, {bytes_text(edge.num_bytes)}"
