"""A graph of modules as SVG, for files, notebooks and pages.

Input: a DataflowGraph. Output: an ``svg`` element, HTML. Invariant: text is escaped; no external
script, font or style is needed; the figure is legible on light and dark backgrounds. The script of
a page reads attributes of boxes (data-n, a number; data-p, that of the frame around it; data-name;
data-open, of a frame) and of lines (data-p; data-e, the numbers of the ends of each edge).
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfake.inspect.dataflow.model_graph import DataflowGraph, GraphNode
from torchfake.inspect.figures.frames import LINE_HEIGHT, Line, Placed, drawing_of
from torchfake.inspect.figures.graph_dot import graph_dot
from torchfake.inspect.figures.html import escape
from torchfake.inspect.figures.layers import Point
from torchfake.inspect.records.record import drawn_as, html_fragment
from torchfake.inspect.show.graph_text import edge_text, node_tooltip

MARGIN = 8

_LIGHT = (
    "--b:#fff;--l:#5b7aa8;--t:#1d2129;--d:#5c6470;--f:#f3f6fa;--g:#eaf0f8;--s:#b9c6d8;--o:#fff4d6;"
    "--p:#e6f4ea;--a:#7b8494"
)
_DARK = (
    "--b:#1f2630;--l:#6f94c8;--t:#e4e7eb;--d:#a9b3c0;--f:#181d24;--g:#20262f;--s:#46536a;"
    "--o:#443a1c;--p:#1f3a29;--a:#8b95a5"
)
STYLE = (
    f".tfg{{{_LIGHT}}}@media(prefers-color-scheme:dark){{.tfg{{{_DARK}}}}}"
    ".tfg text{fill:var(--t);font:11px system-ui,-apple-system,'Segoe UI',sans-serif}"
    ".tfg .h{font-size:12px;font-weight:600}.tfg .d{fill:var(--d)}"
    ".tfg .b{fill:var(--b);stroke:var(--l)}.tfg .f{fill:var(--f);stroke:var(--s)}"
    ".tfg .g{fill:var(--g);stroke:var(--s)}.tfg .o{fill:var(--o);stroke:#c79a2c}"
    ".tfg .p{fill:var(--p);stroke:#4c9a67}.tfg path{fill:none;stroke:var(--a);stroke-width:1.3}"
    ".tfg .e{fill:var(--a);stroke:none}"
)


@drawn_as.register
def _(found: DataflowGraph, form: str) -> str:
    return graph_dot(found) if form == "dot" else graph_svg(found)


@html_fragment.register
def _(found: DataflowGraph) -> str:
    return f'<div style="overflow-x:auto;max-width:100%">{graph_svg(found)}</div>'


def graph_svg(graph: DataflowGraph) -> str:
    """The graph as an ``svg`` element, at its natural size."""
    drawing = drawing_of(graph)
    width, height = round(drawing.width) + 2 * MARGIN, round(drawing.height) + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tfg" role="img" width="{width}" '
        f'height="{height}" viewBox="{-MARGIN} {-MARGIN} {width} {height}">'
        f"<title>{escape(graph.class_name)}: what its modules pass to each other</title>"
        f"<style>{STYLE}</style>"
    ]
    parts += [_frame(box, graph) for box in drawing.boxes if box.node.is_open]
    for line in drawing.lines:
        parts += _line(line)
    parts += ["".join(_box(box)) for box in drawing.boxes if not box.node.is_open]
    return "".join([*parts, "</svg>"])


def _frame(box: Placed, graph: DataflowGraph) -> str:
    level, parent = 0, box.node.parent
    while parent is not None:
        level, parent = level + 1, graph.nodes[parent].parent
    css = "g" if level % 2 else "f"
    dashes = ' stroke-dasharray="5 3"' if box.node.kind == "repeat" else ""
    stack = "" if box.node.repeat == 1 else _behind(box, css)
    body = f"{stack}{_rect(box, css, 6, dashes)}{_texts(box, 10)}{_tooltip(box.node)}"
    return f"<g{_data(box.node)}>{body}</g>"


def _box(box: Placed) -> Iterator[str]:
    kind = box.node.kind
    css = {"function": "o", "input": "p", "output": "p"}.get(kind, "b")
    yield f"<g{_data(box.node)}>"
    if box.node.repeat > 1:
        yield _behind(box, css)
    yield _rect(box, css, 10 if css != "b" else 4, "")
    yield _texts(box, None, is_small=kind == "function")
    yield f"{_tooltip(box.node)}</g>"


def _data(node: GraphNode) -> str:
    around = "" if node.parent is None else f' data-p="{node.parent}"'
    opened = ' data-open=""' if node.is_open else ""
    name = f' data-name="{escape(node.name)}"{opened}'
    return f' data-n="{node.number}"{around}{name}'


def _behind(box: Placed, css: str) -> str:
    """A second box behind a repeated one, of which a corner is visible."""
    return _rect(box._replace(x=box.x + 4, y=box.y + 4), css, 5, "")


def _rect(box: Placed, css: str, radius: int, more: str) -> str:
    return (
        f'<rect class="{css}" x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" '
        f'height="{_n(box.height)}" rx="{radius}"{more}/>'
    )


def _texts(box: Placed, indent: float | None, *, is_small: bool = False) -> str:
    """The lines of text in a box: centred, or indented from its left edge."""
    x = box.x + (box.width / 2 if indent is None else indent)
    anchor = ' text-anchor="middle"' if indent is None else ""
    top = box.y + (14 if is_small else LINE_HEIGHT + 2)
    found = []
    for i, text in enumerate(box.lines):
        css = "" if is_small else ' class="h"' if not i else ' class="d"'
        y = top + LINE_HEIGHT * i
        found.append(f'<text{css} x="{_n(x)}" y="{_n(y)}"{anchor}>{escape(text)}</text>')
    return "".join(found)


def _tooltip(node: GraphNode) -> str:
    return f"<title>{escape(node_tooltip(node))}</title>"


def _line(line: Line) -> Iterator[str]:
    titles = dict.fromkeys(edge_text(edge) for edge in line.edges)
    path = _path(line.points)
    ends = " ".join(dict.fromkeys(f"{edge.source}-{edge.target}" for edge in line.edges))
    around = "" if line.frame is None else f' data-p="{line.frame}"'
    yield f'<g{around} data-e="{ends}"><path d="{path}"/>'
    if line.is_end:
        x, y = line.points[-1]
        yield f'<path class="e" d="M{_n(x - 3.5)} {_n(y - 6)}h7l-3.5 6z"/>'
    yield f"<title>{escape(chr(10).join(titles))}</title></g>"


def _path(points: list[Point]) -> str:
    """The path along points: straight where it passes a row, curved between rows."""
    (x, y), *rest = points
    parts = [f"M{_n(x)} {_n(y)}"]
    for next_x, next_y in rest:
        if abs(next_x - x) < 0.5:
            if next_y != y:
                parts.append(f"V{_n(next_y)}")
        else:
            middle = (y + next_y) / 2
            parts.append(
                f"C{_n(x)} {_n(middle)} {_n(next_x)} {_n(middle)} {_n(next_x)} {_n(next_y)}"
            )
        x, y = next_x, next_y
    return "".join(parts)


def _n(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
