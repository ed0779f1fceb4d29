"""The layout of a graph with nested frames.

Input: a DataflowGraph. Output: boxes, frames and lines with their positions in pixels. Invariant: a
frame contains only its own boxes; a line enters and leaves a frame at a port.
"""

from __future__ import annotations

from typing import NamedTuple

from torchfake.inspect.dataflow.model_graph import DataflowGraph, GraphEdge, GraphNode
from torchfake.inspect.figures.layers import Box, Layout, Point, Wire, layout
from torchfake.inspect.figures.svg import text_width
from torchfake.inspect.records.units import bytes_text, count_text
from torchfake.inspect.show.graph_text import Labels, class_text, notes, outputs_text

PADDING = 12.0
LINE_HEIGHT = 15.0
MAX_LABEL = 34
"""The most characters of a line; the tooltip has the whole text."""


Port = tuple[str, int]
"""A point where the edges from a source enter a frame ("in") or leave it ("out")."""

End = int | Port
"""The end of a wire: a node, or a port of the frame around it."""


class Placed(NamedTuple):
    """A box or a frame with its position."""

    node: GraphNode
    lines: list[str]  # the first is bold
    x: float
    y: float
    width: float
    height: float


class Line(NamedTuple):
    """A line along points, or the part of a line inside a frame."""

    points: list[Point]
    edges: list[GraphEdge]
    is_end: bool  # whether the line ends at a box, not at a frame
    frame: int | None  # the number of the frame that it is in


class Drawing(NamedTuple):
    """All boxes and lines of a graph; a frame comes before its contents."""

    boxes: list[Placed]
    lines: list[Line]
    width: float
    height: float


class _Inside(NamedTuple):
    """The contents of a frame, or of the whole graph, at positions relative to it."""

    boxes: list[Placed]
    lines: list[Line]
    width: float
    height: float
    ports: dict[Port, float]  # horizontal positions


def drawing_of(graph: DataflowGraph) -> Drawing:
    """Lay out a graph."""
    inside = _Frames(graph).inside(None)
    return Drawing(inside.boxes, inside.lines, inside.width, inside.height)


class _Frames:
    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self.labels = Labels(graph)
        self.chains = {node.number: self._chain(node) for node in graph.nodes}
        self.wires: dict[int | None, dict[tuple[End, End, int], list[GraphEdge]]] = {}
        for edge in graph.edges:
            if not edge.to_next:
                self._add_wires(edge)

    def _chain(self, node: GraphNode) -> list[int]:
        """The numbers of the frames around a node, the outermost first, and of the node itself."""
        found = [node.number]
        while node.parent is not None:
            node = self.graph.nodes[node.parent]
            found.append(node.number)
        return found[::-1]

    def _add_wires(self, edge: GraphEdge) -> None:
        """Add the parts of an edge: out of frames, between two frames or boxes, into frames."""
        up, down = self.chains[edge.source], self.chains[edge.target]
        shared = next(i for i, (a, b) in enumerate(zip(up, down, strict=False)) if a != b)
        frame = up[shared - 1] if shared else None
        for level in range(shared, len(up) - 1):
            self._add_wire(up[level], up[level + 1], ("out", edge.source), edge)
        self._add_wire(frame, up[shared], down[shared], edge)
        for level in range(shared, len(down) - 1):
            self._add_wire(down[level], ("in", edge.source), down[level + 1], edge)

    def _add_wire(self, frame: int | None, a: End, b: End, edge: GraphEdge) -> None:
        self.wires.setdefault(frame, {}).setdefault((a, b, edge.source), []).append(edge)

    def inside(self, frame: int | None) -> _Inside:
        """Lay out the contents of a frame, inner frames first; None: the whole graph."""
        nodes = self.graph.children.get(frame, [])
        inner = {n.number: self.inside(n.number) for n in nodes if n.is_open}
        texts = {n.number: _texts(n, self.labels) for n in nodes}
        wires = self.wires.get(frame, {})
        ends = {end for key in wires for end in key[:2] if isinstance(end, tuple)}
        entries = sorted(end for end in ends if end[0] == "in")
        exits = sorted(end for end in ends if end[0] == "out")
        boxes = [Box(0.0, 0.0, is_first=True) for _ in entries]
        boxes += [Box(*_size(n, texts[n.number], inner.get(n.number))) for n in nodes]
        boxes += [Box(0.0, 0.0, is_last=True) for _ in exits]
        order: list[End] = [*entries, *(n.number for n in nodes), *exits]
        place = {end: i for i, end in enumerate(order)}
        made = [
            Wire(place[a], place[b], _offset(inner, a, "out", s), _offset(inner, b, "in", s))
            for a, b, s in wires
        ]
        laid = layout(boxes, made)
        found = _Inside([], [], 0.0, 0.0, {})
        for node in nodes:
            i = place[node.number]
            x, y = laid.corners[i]
            found.boxes.append(Placed(node, texts[node.number], x, y, *boxes[i][:2]))
            if node.number in inner:
                found.boxes.extend(
                    b._replace(x=b.x + x, y=b.y + y) for b in inner[node.number].boxes
                )
                found.lines.extend(_moved(line, x, y) for line in inner[node.number].lines)
        for route, ((_, b, _s), edges) in zip(laid.routes, wires.items(), strict=True):
            is_end = isinstance(b, int) and b not in inner
            found.lines.append(Line(route, edges, is_end, frame))
        found.ports.update({end: laid.corners[place[end]][0] for end in (*entries, *exits)})
        return self._framed(frame, found, laid, len(wires))

    def _framed(self, frame: int | None, found: _Inside, laid: Layout, num_own: int) -> _Inside:
        """Add the frame around its contents; its title is to the left of all entering lines."""
        if frame is None:
            return found._replace(width=laid.width, height=laid.height)
        texts = _texts(self.graph.nodes[frame], self.labels)
        head_width = _texts_width(texts) + 2 * PADDING
        first = min((x for (kind, _), x in found.ports.items() if kind == "in"), default=None)
        left = PADDING if first is None else max(PADDING, head_width - first)
        top = LINE_HEIGHT * len(texts) + PADDING
        width = max(left + laid.width + PADDING, head_width)
        height = top + laid.height + PADDING
        lines = [_moved(line, left, top) for line in found.lines]
        for i in range(len(lines) - num_own, len(lines)):
            points = list(lines[i].points)
            source, target = lines[i].edges[0].source, lines[i].edges[0].target
            if frame not in self.chains[source]:
                points[0] = points[0][0], 0.0
            if frame not in self.chains[target] and not lines[i].is_end:
                points[-1] = points[-1][0], height
            lines[i] = lines[i]._replace(points=points)
        boxes = [box._replace(x=box.x + left, y=box.y + top) for box in found.boxes]
        ports = {end: x + left for end, x in found.ports.items()}
        return _Inside(boxes, lines, width, height, ports)


def _moved(line: Line, dx: float, dy: float) -> Line:
    return line._replace(points=[(x + dx, y + dy) for x, y in line.points])


def _offset(inner: dict[int, _Inside], end: End, kind: str, source: int) -> float:
    """The distance of a wire's end from the middle of its box; 0 unless the box is a frame."""
    if not isinstance(end, int) or end not in inner:
        return 0.0
    return inner[end].ports[kind, source] - inner[end].width / 2


def _texts(node: GraphNode, labels: Labels) -> list[str]:
    """The lines of text in a box; the first is bold."""
    name = labels.short(node)
    if node.kind == "function":
        return [_cut(name)]
    if node.kind == "repeat":
        return [_cut(", ".join([name, *notes(node)]))]
    if node.kind != "module":
        return [_cut(name), _cut(outputs_text(node.outputs))]
    facts = [name] if name != node.class_name else []
    each = " each" * (node.repeat > 1)
    facts += [f"{count_text(node.num_parameters)} params{each}"] if node.num_parameters else []
    texts = [class_text(node), " - ".join(facts)]
    texts += [", ".join(notes(node))]
    if not node.is_open and node.outputs:
        size = bytes_text(sum(spec.num_bytes for spec in node.outputs))
        texts.append(f"{_cut(outputs_text(node.outputs))}, {size}")
        return [_cut(text, 44) for text in texts if text]
    return [_cut(text, 44) for text in texts if text]


def _cut(text: str, length: int = MAX_LABEL) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _texts_width(texts: list[str]) -> float:
    return max(
        (text_width(text, 12.6 if not i else 11.0) for i, text in enumerate(texts)), default=0
    )


def _size(node: GraphNode, texts: list[str], inside: _Inside | None) -> tuple[float, float]:
    if inside is not None:
        return inside.width, inside.height
    if node.kind == "function":
        return max(text_width(texts[0], 11.0) + 14, 30.0), 20.0
    return max(_texts_width(texts) + 20, 60.0), LINE_HEIGHT * len(texts) + 10
