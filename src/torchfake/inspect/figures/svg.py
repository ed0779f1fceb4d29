"""Figures as SVG, which need no script, fill the available width, and follow a dark theme.

Input: the data of a figure. Output: a self-contained ``svg`` element. Invariant: text is escaped;
widths are shares of the figure's width, heights and font sizes are in pixels, so that a narrow page
is as readable as a wide one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from torchfake.inspect.figures.drawing import Array, Block, Curve, Icicle
from torchfake.inspect.figures.html import COLORS, escape
from torchfake.inspect.records.units import bytes_text

ROW = 26
"""The height of a row of an icicle, in pixels."""

MAX_LEVELS = 6
LEAST_WIDTH = 0.0015
"""Blocks narrower than this share of the figure are not drawn."""

LEAST_LABELLED = 0.03
"""Blocks narrower than this share have no label, only a tooltip."""

_PLOT_HEIGHT, _TOP, _LEGEND_ROW = 280, 22, 18
_SHADES = ("#1f4e8c", "#2f6db3", "#5a93cc", "#86b3de", "#aecbe9", "#cddff2")
"""The colours of the levels of an icicle, dark to light; text on the first three is white."""

_OPEN = (
    '<svg xmlns="http://www.w3.org/2000/svg" role="img" width="100%" height="{height}" '
    'font-family="system-ui, sans-serif" font-size="12"><title>{title}</title>'
)


_PAPER = (
    "<style>.tf-figure {color: #1f2328} .tf-figure > .paper {fill: #ffffff} "
    "@media (prefers-color-scheme: dark) {.tf-figure {color: #e6edf3} "
    ".tf-figure > .paper {fill: #0d1117}}</style>"
    '<rect class="paper" width="100%" height="100%"/>'
)


def standalone(svg: str, width: int = 900) -> str:
    """A figure as a file, or as an image in a notebook: with a width in pixels, and a light or dark
    background of its own, so that the figure is readable on any page.
    """
    opened = svg.replace('width="100%"', f'class="tf-figure" width="{width}"', 1)
    return opened.replace("</title>", f"</title>{_PAPER}", 1)


def icicle_svg(figure: Icicle) -> str:
    """An icicle as SVG: each module is as wide as its value, and below its parent."""
    rows = _placed(figure.blocks)
    height = ROW * (1 + max((row for _, row, *_ in rows), default=0))
    parts = [_OPEN.format(height=height, title=escape(figure.title))]
    for block, row, left, width in rows:
        text = figure.text(block.value)
        shade, ink = _SHADES[row], "#fff" if row < 3 else "#111"
        label = f"{escape(block.label)} {escape(text)}" if width >= LEAST_LABELLED else ""
        parts.append(
            f'<svg x="{100 * left:.3f}%" y="{ROW * row}" width="{100 * width:.3f}%" '
            f'height="{ROW - 1}"><title>{escape(block.name)}: {escape(block.label)}, '
            f'{escape(text)}</title><rect width="100%" height="100%" fill="{shade}" '
            f'stroke="#fff" stroke-opacity=".5"/><text x="5" y="17" fill="{ink}">'
            f"{label}</text></svg>"
        )
    return "".join([*parts, "</svg>"])


def _placed(blocks: Sequence[Block]) -> list[tuple[Block, int, float, float]]:
    """Each block that is wide enough, with its row, and its left edge and width as shares of 1."""
    places: dict[str, tuple[int, float, float]] = {}
    free: dict[str, float] = {}  # where the next child of a block begins
    total = max((block.value for block in blocks if not block.parent), default=0)
    found = []
    for block in blocks:
        if not block.parent:
            row, left, width = 0, 0.0, 1.0
        elif block.parent not in places:
            continue
        else:
            row, left = places[block.parent][0] + 1, free[block.parent]
            width = block.value / total
            free[block.parent] = left + width
        if row >= MAX_LEVELS or width < LEAST_WIDTH:
            continue
        places[block.name], free[block.name] = (row, left, width), left
        found.append((block, row, left, width))
    return found


def curve_svg(curve: Curve) -> str:
    """Bytes held over a step as SVG, the categories stacked, with phases and peak."""
    legend_rows = -(-len(curve.categories) // 3)
    height = _TOP + _PLOT_HEIGHT + 24 + _LEGEND_ROW * legend_rows
    parts = [_OPEN.format(height=height, title=escape(f"{curve.title}, {curve.peak_text}"))]
    top = max(float(curve.num_bytes.sum(axis=1).max(initial=0)), 1.0) * 1.08
    parts += _areas(curve, top)
    parts += _scale(top)
    parts += _phase_labels(curve)
    parts += _peak_label(curve, top)
    parts += _legend(curve.categories, height - _LEGEND_ROW * legend_rows)
    return "".join([*parts, "</svg>"])


def _areas(curve: Curve, top: float) -> Iterator[str]:
    """One path for each category, in a drawing that is stretched to the figure's width."""
    last = max(int(curve.events[-1]) if len(curve.events) else 1, 1)
    yield (
        f'<svg y="{_TOP}" width="100%" height="{_PLOT_HEIGHT}" viewBox="0 0 1000 1000" '
        'preserveAspectRatio="none">'
    )
    x = np.rint(1000 * curve.events / last).astype(np.int64)
    below = np.zeros(len(x))
    for column, category in enumerate(curve.categories):
        above = below + curve.num_bytes[:, column]
        if curve.num_bytes[:, column].any():
            path = _outline(x, _heights(above, top), _heights(below, top))
            yield f'<path d="{path}" fill="{COLORS[category]}"><title>{category}</title></path>'
        below = above
    yield "</svg>"


def _heights(num_bytes: Array, top: float) -> Array:
    return np.rint(1000 - 1000 * num_bytes / top).astype(np.int64)


def _outline(x: Array, above: Array, below: Array) -> str:
    """The path along the upper steps and back along the lower; values hold until the next event."""
    parts = [f"M{x[0]} {above[0]}"]
    for i in np.flatnonzero(np.diff(above)).tolist():
        parts.append(f"H{x[i + 1]}V{above[i + 1]}")
    parts.append(f"H{x[-1]}V{below[-1]}")
    for i in np.flatnonzero(np.diff(below)).tolist()[::-1]:
        parts.append(f"H{x[i + 1]}V{below[i]}")
    return "".join([*parts, f"H{x[0]}Z"])


def _scale(top: float) -> Iterator[str]:
    """Horizontal lines at round numbers of bytes, with labels."""
    step = _round_step(top)
    for number in range(1, int(top / step) + 1):
        y = _TOP + _PLOT_HEIGHT * (1 - number * step / top)
        yield (
            f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            f'stroke-opacity=".15"/><text x="2" y="{y - 3:.1f}" fill="currentColor" '
            f'opacity=".7">{escape(bytes_text(int(number * step)))}</text>'
        )


def _round_step(top: float) -> float:
    """The step between lines: 1, 2 or 5 times a power of ten, with three to seven lines."""
    power = 10.0 ** np.floor(np.log10(top))
    return float(next(f * power for f in (0.2, 0.5, 1.0, 2.0) if top / (f * power) <= 7.5))


def _phase_labels(curve: Curve) -> Iterator[str]:
    last = max(int(curve.events[-1]) if len(curve.events) else 1, 1)
    for name, first, end in curve.phases:
        left, middle = 100 * first / last, 50 * (first + end) / last
        yield (
            f'<line x1="{left:.2f}%" x2="{left:.2f}%" y1="{_TOP}" y2="{_TOP + _PLOT_HEIGHT}" '
            'stroke="currentColor" stroke-opacity=".4" stroke-dasharray="2 3"/>'
        )
        if end - first > 0.08 * last:
            yield (
                f'<text x="{middle:.2f}%" y="14" text-anchor="middle" fill="currentColor">'
                f"{escape(name)}</text>"
            )


def _peak_label(curve: Curve, top: float) -> Iterator[str]:
    last = max(int(curve.events[-1]) if len(curve.events) else 1, 1)
    share = curve.peak_event / last
    y = _TOP + _PLOT_HEIGHT * (1 - curve.peak_height / top)
    anchor = "end" if share > 0.5 else "start"
    yield (
        f'<line x1="{100 * share:.2f}%" x2="{100 * share:.2f}%" y1="{y:.1f}" '
        f'y2="{_TOP + _PLOT_HEIGHT}" stroke="currentColor"/><text x="{100 * share:.2f}%" '
        f'y="{y - 4:.1f}" text-anchor="{anchor}" font-weight="bold" fill="currentColor">'
        f"{escape(curve.peak_text)}</text>"
    )


def _legend(categories: Sequence[str], y: int) -> Iterator[str]:
    for i, category in enumerate(categories):
        row, column = divmod(i, 3)
        yield (
            f'<svg x="{33.3 * column:.1f}%" y="{y + _LEGEND_ROW * row}" width="33%" '
            f'height="{_LEGEND_ROW}"><rect y="4" width="10" height="10" '
            f'fill="{COLORS[category]}"/><text x="15" y="13" fill="currentColor">'
            f"{escape(category)}</text></svg>"
        )
