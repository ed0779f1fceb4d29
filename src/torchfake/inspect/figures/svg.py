"""Figures as SVG, which need no script, fill the available width, and follow a dark theme.

Input: the data of a figure. Output: a self-contained ``svg`` element. Invariant: text is escaped;
widths are shares of the figure's width, heights and font sizes are in pixels, so that a narrow page
is as readable as a wide one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from torchfake.inspect.figures.drawing import Array, Block, Curve, Icicle
from torchfake.inspect.figures.html import COLORS, escape
from torchfake.inspect.records.units import bytes_text

ROW = 26
"""The height of a row of an icicle, in pixels."""

MAX_LEVELS = 6
LEAST_WIDTH = 0.0015
"""Blocks narrower than this share of the figure are not drawn."""

WIDE, NARROW = 880, 330
"""The widths in pixels at which labels of an icicle are chosen that fit: on a wide page, and on one
of less than 920 pixels. A block without room for its name has a tooltip alone."""

_PLOT_HEIGHT, _TOP, _LEFT, _RIGHT, _AXIS, _LEGEND_ROW = 280, 22, 58, 8, 22, 18
_SHADES = ("#1f4e8c", "#2f6db3", "#5a93cc", "#86b3de", "#aecbe9", "#cddff2")
"""The colours of the levels of an icicle, dark to light; text on the first two is white."""

_LEAST_IN_LEGEND = 1 / 300
"""Categories that are never higher than this share of the plot are not in the legend."""

_OPEN = (
    '<svg xmlns="http://www.w3.org/2000/svg" role="img" width="100%" height="{height}"{style} '
    'font-family="system-ui, sans-serif" font-size="12"><title>{title}</title>'
)


_BESIDE_LABELS = f' style="overflow:visible;box-sizing:border-box;padding:0 {_RIGHT}px 0 {_LEFT}px"'
"""Of a figure with numbers on its left, which no share of its width is wide enough for."""

_ONE_OF_TWO = (
    "<style>.tf-n {display: none} @media (max-width: 920px) "
    "{.tf-w {display: none} .tf-n {display: inline}}</style>"
)

_PAPER = (
    "<style>.tf-figure {color: #1f2328; --paper: #ffffff} "
    "@media (prefers-color-scheme: dark) {.tf-figure {color: #e6edf3; --paper: #0d1117}} "
    ".tf-figure > .paper {fill: var(--paper)}</style>"
    '<rect class="paper" width="100%" height="100%"/>'
)

HALO = 'fill="currentColor" stroke="var(--paper, Canvas)" stroke-width="4" paint-order="stroke"'
"""Of a text that lines pass behind."""


def text_width(text: str, size: float = 12.0) -> float:
    """The approximate width of a text in a common sans serif font, in pixels."""
    narrow = sum(c in "iljtfr.,:;[]()|' 1" for c in text)
    wide = sum(c.isupper() or c in "mw@%+" for c in text)
    units = 0.38 * narrow + 0.78 * wide + 0.62 * (len(text) - narrow - wide)
    return units * size


def standalone(svg: str, width: int = 900) -> str:
    """A figure as a file, or as an image in a notebook: with a width in pixels, and a light or dark
    background of its own, so that the figure is readable on any page.
    """
    paper, end = _PAPER, ""
    if _BESIDE_LABELS in svg:  # a file has no padding
        svg = svg.replace(_BESIDE_LABELS, "", 1)
        paper += f'<svg x="{_LEFT}" width="{width - _LEFT - _RIGHT}" overflow="visible">'
        end = "</svg>"
    opened = svg.replace('width="100%"', f'class="tf-figure" width="{width}"', 1)
    return opened.replace("</title>", f"</title>{paper}", 1) + end


def icicle_svg(figure: Icicle) -> str:
    """An icicle as SVG: each module is as wide as its value, and below its parent."""
    placed = _placed(figure.blocks)
    height = ROW * (1 + max((place.row for place in placed), default=0))
    whole = max((place.block.value for place in placed), default=1)
    parts = [_OPEN.format(height=height, style="", title=escape(figure.title)), _ONE_OF_TWO]
    parts += [_block(place, figure, whole) for place in placed]
    return "".join([*parts, "</svg>"])


class _Place(NamedTuple):
    block: Block
    row: int
    left: float  # as a share of the figure's width
    width: float
    is_rest: bool = False  # what is in no block that is drawn


def _block(place: _Place, figure: Icicle, whole: int) -> str:
    """A rectangle, with as much of its label as there is room for, and a tooltip."""
    block, size = place.block, figure.text(place.block.value)
    name = block.label.partition(" ")[0]
    texts = f"{block.label} {size}", f"{name} {size}", name
    wide, narrow = (_fitting(texts, place.width * width) for width in (WIDE, NARROW))
    shade, ink = _SHADES[place.row], "#fff" if place.row < 2 else "#111"
    edge = "#fff" if place.row < 2 else _SHADES[0]
    style = f'fill="{shade}" stroke="{edge}" stroke-opacity=".6"'
    if place.is_rest:
        style, ink = 'fill="none" stroke="currentColor" stroke-dasharray="2 2"', "currentColor"
    each = f" ({block.repeat} x {figure.text(block.value // block.repeat)})"
    about = f"{block.name}: {block.label}, {size}{each * (block.repeat > 1)}"
    about += f", {100 * block.value / whole:.1f} % of the whole"
    labels = [("", wide)] if wide == narrow else [("tf-w", wide), ("tf-n", narrow)]
    return (
        f'<svg x="{100 * place.left:.3f}%" y="{ROW * place.row}" width="{100 * place.width:.3f}%" '
        f'height="{ROW - 1}"><title>{escape(about)}</title><rect width="100%" height="100%" '
        f"{style}/>{''.join(_label(css, text, ink) for css, text in labels if text)}</svg>"
    )


def _fitting(texts: Sequence[str], width: float) -> str:
    """The first of some texts for which there is room."""
    return next((text for text in texts if text_width(text) + 10 <= width), "")


def _label(css: str, text: str, ink: str) -> str:
    of_class = f' class="{css}"' if css else ""
    return f'<text{of_class} x="5" y="17" fill="{ink}">{escape(text)}</text>'


def _placed(blocks: Sequence[Block]) -> list[_Place]:
    """Each block that is wide enough, and what is left of a block beside those in it."""
    places: dict[str, _Place] = {}
    free: dict[str, float] = {}  # where the next child of a block begins
    total = max((block.value for block in blocks if not block.parent), default=0)
    for block in blocks:
        row, left, width = 0, 0.0, 1.0
        if block.parent:
            if block.parent not in places:
                continue
            row, left = places[block.parent].row + 1, free[block.parent]
            width = block.value / total
        if row >= MAX_LEVELS or width < LEAST_WIDTH:
            continue
        free[block.parent], free[block.name] = left + width, left
        places[block.name] = _Place(block, row, left, width)
    rests = [_rest(place, free[name], total) for name, place in places.items()]
    return [*places.values(), *(rest for rest in rests if rest is not None)]


def _rest(place: _Place, begin: float, total: int) -> _Place | None:
    """The part of a block that none of the blocks in it has; None if no block in it is drawn."""
    width = place.left + place.width - begin
    if begin == place.left or width < LEAST_WIDTH:
        return None
    name = f"{place.block.name}, in none of these modules"
    block = Block(name, place.block.name, "rest", round(width * total))
    return _Place(block, place.row + 1, begin, width, is_rest=True)


def curve_svg(curve: Curve) -> str:
    """Bytes held over a step as SVG, the categories stacked, with phases and peak."""
    highest_sum = float(curve.num_bytes.sum(axis=1).max(initial=0))
    top = max(highest_sum, curve.usable_bytes or 0, 1.0) * 1.08
    highest = curve.num_bytes.max(axis=0, initial=0).tolist()
    named = [
        c for c, n in zip(curve.categories, highest, strict=True) if n > _LEAST_IN_LEGEND * top
    ]
    legend = _TOP + _PLOT_HEIGHT + _AXIS
    height = legend + _LEGEND_ROW * -(-len(named) // 2)
    title = escape(f"{curve.title}, {curve.peak_text}")
    parts = [_OPEN.format(height=height, style=_BESIDE_LABELS, title=title)]
    parts += _scale(top)
    parts += _phase_labels(curve)
    parts += _areas(curve, top)
    parts += _usable_line(curve, top)
    parts += _peak_label(curve, top)
    parts.append(
        f'<text x="50%" y="{legend - 6}" text-anchor="middle" fill="currentColor">'
        "allocations and frees, in order</text>"
    )
    parts += _slices(curve)
    parts += _legend(named, legend)
    return "".join([*parts, "</svg>"])


def _last(curve: Curve) -> int:
    return max(int(curve.events[-1]) if len(curve.events) else 1, 1)


def _areas(curve: Curve, top: float) -> Iterator[str]:
    """One path for each category, in a drawing that is stretched to the plot's width."""
    yield (
        f'<svg y="{_TOP}" width="100%" height="{_PLOT_HEIGHT}" viewBox="0 0 1000 1000" '
        'preserveAspectRatio="none">'
    )
    x = np.rint(1000 * curve.events / _last(curve)).astype(np.int64)
    below = np.zeros(len(x))
    for column, category in enumerate(curve.categories):
        above = below + curve.num_bytes[:, column]
        if curve.num_bytes[:, column].any():
            path = _outline(x, _heights(above, top), _heights(below, top))
            yield f'<path d="{path}" fill="{COLORS[category]}"><title>{category}</title></path>'
        below = above
    yield "</svg>"


def _slices(curve: Curve) -> Iterator[str]:
    """A tooltip for each stretch of the step, over the whole height."""
    last = _last(curve)
    for first, end, text in curve.slices:
        yield (
            f'<rect x="{100 * first / last:.2f}%" y="{_TOP}" fill="transparent" '
            f'width="{100 * (min(end, last) - first) / last:.2f}%" height="{_PLOT_HEIGHT}">'
            f"<title>{escape(text)}</title></rect>"
        )


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
    """Horizontal lines at round numbers of bytes, with labels to their left."""
    step = _round_step(top)
    for number in range(int(top / step) + 1):
        y = _TOP + _PLOT_HEIGHT * (1 - number * step / top)
        size = bytes_text(int(number * step)).replace(".00 ", " ").replace(".0 ", " ")
        yield (
            f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            f'stroke-opacity=".15"/><text x="-6" y="{y + 4:.1f}" text-anchor="end" '
            f'fill="currentColor">{escape(size)}</text>'
        )


def _round_step(top: float) -> float:
    """The step between lines: 1, 2 or 5 times a power of ten, with three to seven lines."""
    power = 10.0 ** np.floor(np.log10(top))
    return float(next(f * power for f in (0.2, 0.5, 1.0, 2.0) if top / (f * power) <= 7.5))


_NARROWEST_PHASE = 0.08
"""The share of the plot from which on a phase is named."""


def _phase_labels(curve: Curve) -> Iterator[str]:
    last = _last(curve)
    for name, first, end in curve.phases:
        left = 100 * first / last
        yield (
            f'<line x1="{left:.2f}%" x2="{left:.2f}%" y1="{_TOP}" y2="{_TOP + _PLOT_HEIGHT}" '
            'stroke="currentColor" stroke-opacity=".4" stroke-dasharray="2 3"/>'
        )
        if end - first > _NARROWEST_PHASE * last:
            yield _centred(name, (first + end) / 2 / last, 14)


def _centred(text: str, share: float, y: float, more: str = "") -> str:
    """A text with its middle at a share of the width, or as near as the plot's ends allow."""
    half = round(text_width(text, 13) / 2)
    x = f"clamp({half}px, {100 * share:.2f}%, 100% - {half}px)"
    return (
        f'<text style="transform:translateX({x})" y="{y:.1f}" text-anchor="middle" '
        f"{HALO}{more}>{escape(text)}</text>"
    )


def _usable_line(curve: Curve, top: float) -> Iterator[str]:
    """Where the memory that the step can use ends, named on the side where the peak is not."""
    if curve.usable_bytes is None:
        return
    y = _TOP + _PLOT_HEIGHT * (1 - curve.usable_bytes / top)
    x, anchor = ("0", "start") if curve.peak_event > _last(curve) / 2 else ("100%", "end")
    yield (
        f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
        f'stroke-dasharray="6 4"/><text x="{x}" y="{y - 6:.1f}" text-anchor="{anchor}" {HALO}>'
        f"{bytes_text(curve.usable_bytes)} usable</text>"
    )


def _peak_label(curve: Curve, top: float) -> Iterator[str]:
    share = curve.peak_event / _last(curve)
    y = _TOP + _PLOT_HEIGHT * (1 - curve.peak_bytes / top)
    yield (
        f'<svg x="{100 * share:.2f}%" overflow="visible">'
        f'<polygon points="-4,{y - 7:.1f} 4,{y - 7:.1f} 0,{y - 1:.1f}" fill="currentColor"/></svg>'
    )
    yield _centred(curve.peak_text, share, y - 10, ' font-weight="bold"')


def _legend(categories: Sequence[str], y: int) -> Iterator[str]:
    for i, category in enumerate(categories):
        row, column = divmod(i, 2)
        yield (
            f'<svg x="{50 * column}%" y="{y + _LEGEND_ROW * row}" width="50%" '
            f'height="{_LEGEND_ROW}"><rect y="4" width="10" height="10" '
            f'fill="{COLORS[category]}"/><text x="15" y="13" fill="currentColor">'
            f"{escape(category)}</text></svg>"
        )
