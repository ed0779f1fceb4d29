"""Records as HTML for notebooks: a collapsible tree, tables, bars.

Input: a record. Output: an HTML fragment that any page can contain, without scripts or links.
Invariant: every text is escaped, and the texts are those of ``show/text``.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape as _escape_markup

from torchfake.errors import printable
from torchfake.inspect.check import Checked
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit, Fits
from torchfake.inspect.records.record import Record, html_fragment
from torchfake.inspect.show import summary_table, text
from torchfake.inspect.show.headline import headline
from torchfake.inspect.show.summary_table import LEFT_ALIGNED
from torchfake.inspect.summary import Summary


def escape(text: str) -> str:
    """Text escaped for HTML; control characters are made visible."""
    return _escape_markup(printable(text, keep="\n"))


OPEN_LEVELS = 2
"""The number of tree levels that are expanded initially."""

COLORS = {
    "parameters": "#4269d0",
    "gradients": "#efb118",
    "optimizer state": "#ff725c",
    "activations": "#6cc5b0",
    "temporaries": "#9498a0",
    "buffers": "#a463f2",
    "inputs": "#97bbf5",
    "kv cache": "#3ca951",
    "workspace": "#9c6b4e",
    "unsharded parameters": "#ff8ab7",
    "communication": "#b5a642",
}
"""Colours of categories in bars and figures: Observable's ten categorical colours, and one more."""

STYLE = """<style>
.tf {font: 13px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; overflow-x: auto}
.tf .row {display: flex; gap: 1.5em; white-space: pre; width: max-content}
.tf summary.row {cursor: pointer; list-style: none}
.tf summary.row::-webkit-details-marker {display: none}
.tf summary.row > :first-child::before {content: "\\25B8  "; opacity: .6}
.tf details[open] > summary.row > :first-child::before {content: "\\25BE  "}
.tf div.row > :first-child::before {content: "\\2007  "}
.tf .row:hover {background: rgba(128, 128, 128, .15)}
.tf .num {text-align: right}
.tf .dim {opacity: .65}
.tf table {border-collapse: collapse; margin: .5em 0}
.tf td, .tf th {padding: .1em 1em .1em 0; text-align: left; background: none}
.tf td.num, .tf th.num {text-align: right}
.tf .grid td, .tf .grid th {white-space: nowrap}
.tf .bar {display: inline-block; height: .8em; min-width: 1px}
</style>"""


@html_fragment.register
def _(found: Record) -> str:
    return _framed(f"<pre>{escape(str(found))}</pre>")


@html_fragment.register
def _(found: Summary) -> str:
    first = f"<p><b>{escape(headline(found))}</b></p>"
    tree = _tree(summary_table.rows(found, depth=found.depth))
    return _framed(first + tree + _lines(text.summary_lines(found)))


@html_fragment.register
def _(found: Estimate) -> str:
    return _framed(_lines(text.verdict_lines(found)) + _memory(found))


@html_fragment.register
def _(found: Fits) -> str:
    fitted = _table(text.fits_header(found), text.fits_rows(found), left=text.FITS_LEFT_ALIGNED)
    note = f'<p class="dim">{escape(text.reserved_note(found))}</p>'
    verdict = _lines(text.verdict_lines(found))
    return _framed(verdict + _memory(found.shown, found.shown_fit) + fitted + note)


@html_fragment.register
def _(found: Checked) -> str:
    return _framed(_lines(text.checked_lines(found)))


@html_fragment.register
def _(found: Inspection) -> str:
    lines = text.totals(found.summary) + text.quantized_lines(found.weights) + text.costs(found)
    first = f"<p><b>{escape(headline(found.summary, found.weights))}</b></p>"
    tree = _tree(summary_table.rows(found.summary)) + _lines(lines)
    return _framed(first + tree) + ("" if found.memory is None else html_fragment(found.memory))


def _framed(body: str) -> str:
    return f'{STYLE}<div class="tf">{body}</div>'


def _tree(rows: Sequence[summary_table.Row]) -> str:
    """The rows of a tree as nested ``details`` elements, in columns."""
    grid = _Grid(rows)
    parts = [grid.line("div", "module", grid.header, 0, "head")]
    open_levels: list[int] = []
    for number, row in enumerate(rows):
        level = len(row.is_last)
        while open_levels and open_levels[-1] >= level:
            parts.append("</details>")
            open_levels.pop()
        cells = [row.cells[i] for i in grid.columns]
        if number + 1 < len(rows) and len(rows[number + 1].is_last) > level:
            parts.append(f"<details{' open' if level < OPEN_LEVELS else ''}>")
            parts.append(grid.line("summary", row.label, cells, level))
            open_levels.append(level)
        else:
            parts.append(grid.line("div", row.label, cells, level))
    note = summary_table.footnote(list(rows))
    end = f'<p class="dim">{escape(note)}</p>' if note else ""
    return "".join(parts) + "</details>" * len(open_levels) + end


class _Grid:
    """The columns of a tree and their widths, in characters."""

    def __init__(self, rows: Sequence[summary_table.Row]) -> None:
        self.columns = summary_table.filled_columns(list(rows))
        self.header = [summary_table.header()[i + 1] for i in self.columns]
        self.widths = [
            max(len(name), *(len(row.cells[i]) for row in rows))
            for i, name in zip(self.columns, self.header, strict=True)
        ]
        self.label_width = max(2 * len(row.is_last) + len(row.label) for row in rows)

    def line(self, tag: str, label: str, cells: Sequence[str], level: int, css: str = "") -> str:
        """One row, indented by its level."""
        bold = "b" if css else "span"  # inside the cell, since the unit ch is wider in bold type
        width = f"width:{self.label_width - 2 * level + 4}ch"
        first = f'<span style="{width}"><{bold}>{escape(label)}</{bold}></span>'
        others = "".join(
            f'<span class="{"" if name in LEFT_ALIGNED else "num"}" style="width:{width}ch">'
            f"<{bold}>{escape(cell)}</{bold}></span>"
            for name, width, cell in zip(self.header, self.widths, cells, strict=True)
        )
        style = f"margin-left:{2 * level}ch"
        return f'<{tag} class="row {css}" style="{style}">{first}{others}</{tag}>'


def _lines(lines: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(content)}</td></tr>" for name, content in lines
    )
    return f"<table>{rows}</table>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str]) -> str:
    header = [name for name in header if name]
    css = ["" if name in left else ' class="num"' for name in header]
    parts = [
        "".join(f"<th{c}>{escape(name)}</th>" for name, c in zip(header, css, strict=True)),
        *(
            "".join(f"<td{c}>{escape(cell)}</td>" for cell, c in zip(row, css, strict=False))
            for row in rows
        ),
    ]
    return '<table class="grid">' + "".join(f"<tr>{part}</tr>" for part in parts) + "</table>"


def _memory(estimate: Estimate, fit: Fit | None = None) -> str:
    """The lines of an estimate as a table, with a bar for each category."""
    by_category = estimate.peak.by_category
    total = max(estimate.peak_bytes, 1)
    rows = []
    for name, content in text.estimate_lines(estimate, fit):
        size = by_category.get(name.strip()) if name.startswith(" ") else None
        bar = "" if size is None else _bar(size / total, COLORS[name.strip()])
        rows.append(
            f"<tr><th>{escape(name).replace(' ', '&nbsp;')}</th>"
            f"<td>{escape(content)}</td><td>{bar}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _bar(share: float, color: str) -> str:
    return f'<span class="bar" style="width:{20 * share:.2f}em;background:{color}"></span>'
