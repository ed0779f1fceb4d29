"""The figures of the page "Figures", drawn from the tables of the other pages.

Input: the pages of docs/. Output: Markdown with SVG, without scripts, for light and dark pages.
Invariant: every number is in a table; a table that is not found fails the build. Called by:
``assemble``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

Rows = dict[str, dict[str, float]]
"""The numbers of a chart, by row and series."""

COLORS = ("#4269d0", "#efb118", "#ff725c", "#3ca951")
MOST_TICKS = 8
LEFT, RIGHT, ROW, TOP = 196, 390, 26, 26


def figures(docs: Path) -> str:
    """The text of the page."""
    return "\n".join(["# Figures", "", *_figures(docs), ""])


def _figures(docs: Path) -> Iterator[str]:
    for title, page, heading, column in (
        ("Memory, as estimated and as published", "memory.md", "", 4),
        ("Throughput of training, as planned and as published", "time.md", "", 3),
        ("Serving, as planned and as published", "serving.md", "## Published figures", 3),
    ):
        text = (docs / page).read_text()
        ratios = _ratios(text[text.index(heading) :], column)
        drawn = chart(title, ratios, "estimate / published", is_log=False)
        yield from (f"## {title}", "", f"{_spread(ratios)} of [a table]({page}).", "", drawn, "")
    fast = (docs / "performance.md").read_text()
    peers = ("torchfake", "meta", "FakeTensorMode")
    times = (
        ("Building a model", "seconds of CPU time", _table(fast, "Construction", peers)),
        ("One operation", "microseconds", _table(fast, "Single operations", (*peers, "eager"))),
        ("A forward and a backward pass", "seconds", _table(fast, "Forward and backward", peers)),
        (
            "Building, then materializing",
            "seconds",
            _table(fast, "Materialization", ("torchfake, s", "eager, s")),
        ),
    )
    for title, unit, rows in times:
        yield from (f"## {title}", "", _compared(rows), "")
        yield from (chart(title, rows, f"{unit}, log scale", is_log=True), "")
    yield "How times were measured, and all others: [Performance](performance.md)."


def _compared(rows: Rows) -> str:
    """How many times as long the others take, as a sentence."""
    others = list(dict.fromkeys(name for row in rows.values() for name in row))[1:]
    times = [
        (name, sorted(row[name] / row["torchfake"] for row in rows.values())) for name in others
    ]
    said = (f"{name} takes {_from_to(found[0], found[-1])} times as long" for name, found in times)
    return f"Compared with torchfake, {', '.join(said)}; further left is faster."


def _from_to(low: float, high: float) -> str:
    """Two numbers with two digits, once if they are the same."""
    return " to ".join(dict.fromkeys(f"{float(f'{each:.2g}'):g}" for each in (low, high)))


def _spread(rows: Rows) -> str:
    """How far the estimates are off, as a sentence."""
    errors = sorted(abs(value - 1) for row in rows.values() for value in row.values())
    half, most = errors[len(errors) // 2], errors[math.ceil(0.9 * len(errors)) - 1]
    seen = f"Half of the estimates are within {half:.1%}, nine in ten within {most:.1%}"
    dots = f"each dot is one of {len(errors)} rows"
    return f"{seen.replace('%', ' %')}. 1 is the published figure; {dots}"


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]


def _table(text: str, heading: str, columns: tuple[str, ...]) -> Rows:
    """The first table under a heading."""
    section = text.split(f"\n## {heading}\n", 1)[1]
    header, _, *lines = re.findall(r"^\|.*$", section, re.MULTILINE)
    names = _cells(header)
    body = section[section.index(header) :].split("\n\n", 1)[0].splitlines()[2:]
    assert lines
    rows = {}
    for line in body:
        cells = dict(zip(names, _cells(line), strict=False))
        rows[_cells(line)[0]] = {c.partition(",")[0]: float(cells[c]) for c in columns}
    return rows


def _ratios(text: str, column: int) -> Rows:
    """The ratios of the first table, by the beginning of the name."""
    body = text[text.index("\n|") + 1 :].split("\n\n", 1)[0].splitlines()[2:]
    rows: Rows = {}
    for number, line in enumerate(body):
        cells = _cells(line)
        row = rows.setdefault(cells[0].partition(",")[0].partition(" (")[0], {})
        row[str(number)] = float(cells[column])
    return rows


def chart(title: str, rows: Rows, unit: str, *, is_log: bool) -> str:
    """Dots along an axis, a row for each name, a colour for each series."""
    values = [value for row in rows.values() for value in row.values()]
    series = list(dict.fromkeys(name for row in rows.values() for name in row)) if is_log else []
    low, high = _ends(values, is_log)

    def x(value: float) -> float:
        place = math.log10(value / low) / math.log10(high / low) if is_log else 0.0
        return LEFT + (RIGHT - LEFT) * (place if is_log else (value - low) / (high - low))

    bottom = TOP + ROW * len(rows)
    parts = [
        f'<svg class="chart" role="img" viewBox="0 0 {RIGHT + 30} {bottom + 40}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
    ]
    for tick in _ticks(low, high, is_log):
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 6}" y2="{bottom}"/>'
            f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:,.6g}</text>'
        )
    for number, (name, row) in enumerate(rows.items()):
        y = TOP + ROW * (number + 0.5)
        parts.append(f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{_short(name)}</text>')
        for key, value in row.items():
            color = COLORS[series.index(key)] if series else COLORS[0]
            said = f"{name}: {key} {value:g}" if series else f"{name}: {value:g}"
            parts.append(
                f'<circle cx="{x(value):.1f}" cy="{y}" r="5" fill="{color}">'
                f"<title>{escape(said)}</title></circle>"
            )
    at = 8
    for number, name in enumerate(series):
        parts.append(f'<circle cx="{at}" cy="9" r="5" fill="{COLORS[number]}"/>')
        parts.append(f'<text x="{at + 10}" y="13">{escape(name)}</text>')
        at += 36 + 7 * len(name)
    middle = (LEFT + RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{bottom + 34}" text-anchor="middle">{unit}</text></svg>')
    return "".join(parts)


def _short(name: str) -> str:
    return escape(name if len(name) <= 26 else f"{name[:25]}…")


def _ends(values: list[float], is_log: bool) -> tuple[float, float]:
    if is_log:
        return 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    return min(0.8, math.floor(10 * min(values)) / 10), max(1.2, math.ceil(10 * max(values)) / 10)


def _ticks(low: float, high: float, is_log: bool) -> list[float]:
    if is_log:
        return [low * 10**i for i in range(round(math.log10(high / low)) + 1)]
    step = next(step for step in (0.1, 0.2, 0.5, 1.0) if high - low <= MOST_TICKS * step)
    first = math.ceil(round(low / step, 6))
    return [round(step * i, 1) for i in range(first, math.floor(round(high / step, 6)) + 1)]
