"""Records as HTML for notebooks: a collapsible tree, tables, bars.

Input: a record. Output: an HTML fragment that any page can contain, without scripts or links.
Invariant: every text is escaped; rows are those of ``show``; the style sheet of a page around it,
such as JupyterLab's, changes neither alignment nor indentation: ours is more specific.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape as _escape_markup
from itertools import zip_longest
from typing import Any

from torchfake.errors import printable
from torchfake.inspect.records.record import Record, html_fragment, shown
from torchfake.inspect.show.layout import narrowed
from torchfake.inspect.show.rows import VERDICT, Bar, Block, Column, Row, emphasized


def escape(text: str) -> str:
    """Text escaped for HTML; control characters are made visible."""
    return _escape_markup(printable(text, keep="\n"))


def breakable(text: str) -> str:
    """Text escaped for HTML, in which lines may break inside names, after "_", "." and "/", and not
    inside options of the command line.
    """
    broken = re.sub(r"(?<=[\w)][_./])(?=[A-Za-z_]{3})", "<wbr>", escape(text))
    return re.sub(r"(?<!\S)--[a-z]+-[a-z-]+", r'<span class="flag">\g<0></span>', broken)


_NARROW = 46
"""The characters of a line on a phone."""

_LABEL, _TEXT, _GAP = 40, 28, 2
"""The characters of a name and of a text in a tree for which other columns make room, and those
between columns."""

OPEN_LEVELS = 2
"""The number of tree levels that are expanded initially."""

COLORS = {
    "parameters": "#4269d0",
    "weights": "#4269d0",
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
.tf {font: 13px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums}
.tf .wide {overflow-x: auto}
.tf .row {display: flex; gap: 2ch; white-space: pre; width: max-content; max-width: 100%;
  --step: 2ch}
.tf .row > * {flex: none}
.tf .row > :first-child, .tf .row > .text {overflow: hidden; text-overflow: ellipsis}
.tf .row > :first-child {flex-shrink: 1; box-sizing: border-box; min-width: 12ch;
  padding-left: calc(var(--level) * var(--step))}
.tf .row > .text {flex-shrink: 99}
.tf summary.row {cursor: pointer; list-style: none}
.tf summary.row::-webkit-details-marker {display: none}
.tf summary.row > :first-child::before {content: "\\25B8  "; opacity: .6}
.tf details[open] > summary.row > :first-child::before {content: "\\25BE  "}
.tf div.row > :first-child::before {content: "\\2007  "}
.tf .row:hover {background: rgba(128, 128, 128, .15)}
.tf .num {text-align: right}
.tf .dim {opacity: .75}
.tf .yes, .tf .tight, .tf .no {font-weight: 600; --hue: #1a9f3f;
  color: color-mix(in srgb, currentColor 40%, var(--hue))}
.tf .tight {--hue: #c98a00}
.tf .no {--hue: #e5383b}
.tf.tf.tf table {border-collapse: collapse; border: 0; margin: .5em 0; width: auto;
  table-layout: auto; font-size: inherit}
.tf.tf.tf thead {border: 0}
.tf.tf.tf tr {background: none; border: 0}
.tf td, .tf th {background: none}
.tf.tf.tf td, .tf.tf.tf th {padding: .1em 1em .1em 0; border: 0; text-align: left;
  vertical-align: top; line-height: inherit; max-width: none}
.tf.tf.tf th {font-weight: 600; white-space: nowrap}
.tf.tf.tf td.num, .tf.tf.tf th.num {text-align: right}
.tf.tf.tf td {overflow-wrap: anywhere}
.tf.tf.tf .lines th {padding-left: var(--in, 0)}
.tf.tf.tf .grid td, .tf .flag {white-space: nowrap}
.tf.tf.tf p {margin: .5em 0}
.tf.tf.tf pre {overflow-x: auto; font-size: 12px}
.tf .part, .tf .bar, .tf .rest {display: inline-block}
.tf .bar {height: .8em; min-width: 1px}
.tf {container-type: inline-size}
.tf .narrow {display: none}
@container (max-width: 600px) {
  .tf.tf.tf .narrow {display: revert}
  .tf.tf.tf .wider {display: none}
  .tf.tf.tf .grid .narrow td {white-space: normal; padding: 0 0 .3em 1em}
  .tf .row {--step: .7em}
}
@container (max-width: 450px) {
  .tf.tf.tf .lines, .tf .lines :is(tbody, th, td) {display: block}
  .tf.tf.tf .lines tr {display: block; margin-bottom: .4em}
  .tf.tf.tf .lines td {padding-left: calc(2ch + var(--in, 0ch))}
  .tf.tf.tf .lines tr.short {display: flex; margin: 0}
  .tf.tf.tf .lines tr.short th {flex: 0 0 15em; padding-right: 0}
  .tf.tf.tf .lines tr.short td {padding: .1em 0}
}
</style>"""


@html_fragment.register
def _(found: Record) -> str:
    return blocks_html(shown(found))


def blocks_html(blocks: Iterable[Block]) -> str:
    """Blocks of rows as an HTML fragment."""
    return f'{STYLE}<div class="tf">{"".join(map(_block, blocks))}</div>'


def _block(block: Block) -> str:
    parts = [f"<p><b>{_emphasized(block.heading, VERDICT)}</b></p>"] if block.heading else []
    if block.columns:
        is_tree = any(row.indent for row in block.rows)
        columns = "".join(_tree(block) if is_tree else _table(block))
        parts.append(f'<div class="wide" tabindex="0">{columns}</div>')
    elif block.rows:
        parts += _lines(block.rows)
    parts += [f'<p class="dim">{escape(block.note)}</p>'] if block.note else []
    parts += [f'<pre tabindex="0">{escape(block.code)}</pre>'] if block.code else []
    return "".join(parts)


def _emphasized(text: str, emphasis: str) -> str:
    return "".join(
        f'<span class="{style}">{breakable(part)}</span>' if style else breakable(part)
        for part, style in emphasized(text, emphasis)
    )


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    """Names and texts; a bar stands beside its number, and all begin at the same place."""
    yield '<table class="lines">'
    longest = max((len(_number(row)) for row in rows if row.bar), default=0)
    for row in rows:
        indent = f' style="--in:{2 * row.indent}ch"' if row.indent else ""
        is_short = row.bar or (row.indent and row.values and len(row.values[-1]) <= _SHORT)
        css = ' class="short"' if is_short else ""
        yield f'<tr{css}{indent}><th scope="row">{escape(row.name)}</th>'
        yield from (f"<td>{breakable(value)}</td>" for value in row.values[:-1])
        text = _emphasized(row.values[-1], row.emphasis) if row.values else ""
        if row.bar:
            number = _number(row)
            rest = row.values[-1][len(number) :].lstrip(",; ")
            text = _bar(row.bar, number, longest)
            text += f' <span class="rest">{breakable(rest)}</span>' * bool(rest)
        yield f"<td>{text}</td></tr>"
    yield "</table>"


_SHORT = 16
"""Letters of an indented text that stays beside its name on a phone, as numbers with bars do."""

_NUMBER = re.compile(r"[\d.,]+ \w+( \([^)]*\))?")


def _number(row: Row) -> str:
    """The number of a row with a bar, without what else is said of it."""
    found = _NUMBER.match(row.values[-1])
    return found[0] if found else row.values[-1]


def _bar(bar: Bar, number: str, longest: int) -> str:
    width = f"calc({bar.share:.3f} * min(20em, 34vw))"  # on a phone beside names and numbers
    text = f'<span class="part" style="width:{longest + 1}ch">{escape(number)}</span>'
    return f'{text}<span class="bar" style="width:{width};background:{COLORS[bar.kind]}"></span>'


def _table(block: Block) -> Iterator[str]:
    """A table; on a narrow page columns go as they do in a narrow terminal, which a note names."""
    columns, narrow = {i: block.columns[i] for i in block.filled()}, narrowed(block, _NARROW)
    css = {
        i: _classes("num" * (not column.is_left), "wider" * (i not in narrow.shown))
        for i, column in columns.items()
    }
    heads = (f'<th scope="col"{css[i]}>{escape(column.name)}</th>' for i, column in columns.items())
    yield f'<table class="grid"><thead><tr>{"".join(heads)}</tr></thead><tbody>'
    for row in block.rows:
        yield f'<tr><th scope="row">{escape(row.name)}</th>'
        for i, column in list(columns.items())[1:]:
            yield f"<td{css[i]}>{_cell(column, row.values[i - 1], narrow.is_short)}</td>"
        yield "</tr>"
        texts = {i: columns[i].text_of(row.values[i - 1]) for i in narrow.under}
        if under := ", ".join(f"{columns[i].under}{text}" for i, text in texts.items() if text):
            yield f'<tr class="narrow"><td colspan="{len(narrow.shown)}">{escape(under)}</td></tr>'
    yield "</tbody></table>"
    if narrow.left_out:
        yield f'<p class="dim narrow">left out at this width: {", ".join(narrow.left_out)}</p>'


def _cell(column: Column, value: Any, is_short: bool) -> str:
    """The text of a value, and the shorter one of a narrow page."""
    text, short = column.text_of(value), column.text_of(value, is_short=is_short)
    found = _emphasized(text, column.emphasis)
    if short == text:
        return found
    return f'<span class="wider">{found}</span><span class="narrow">{escape(short)}</span>'


def _classes(*names: str) -> str:
    found = " ".join(filter(None, names))
    return f' class="{found}"' if found else ""


def _tree(block: Block) -> Iterator[str]:
    """The rows of a tree as nested ``details`` elements, in columns."""
    grid = _Grid(block)
    yield grid.line("div", block.columns[0].name, grid.header, 0, "head")
    open_levels: list[int] = []
    for row, after in zip_longest(block.rows, block.rows[1:]):
        while open_levels and open_levels[-1] >= row.indent:
            yield "</details>"
            open_levels.pop()
        if after is not None and after.indent > row.indent:
            yield f"<details{' open' if row.indent < OPEN_LEVELS else ''}>"
            yield grid.line("summary", row.name, grid.cells(row), row.indent)
            open_levels.append(row.indent)
        else:
            yield grid.line("div", row.name, grid.cells(row), row.indent)
    yield "</details>" * len(open_levels)
    yield from grid.left_out()


class _Grid:
    """The columns of a tree and their widths, in characters; columns go one by one, the least
    needed first, where they are not whole, which a note says. Numbers are whole at any width.
    """

    def __init__(self, block: Block) -> None:
        self.indices = block.filled()[1:]
        self.columns = [block.columns[i] for i in self.indices]
        self.header = [column.name for column in self.columns]
        heads = (f"{name} " for name in self.header)  # bold, and so a little wider
        table = zip(heads, *map(self.cells, block.rows), strict=True)
        self.widths = [max(map(len, cells)) for cells in table]
        self.label_width = max(2 * row.indent + len(row.name) for row in block.rows) + 4
        self.room = self._room()

    def cells(self, row: Row) -> list[str]:
        """The texts of a row after its name."""
        values = (row.values[i - 1] for i in self.indices)
        return [column.text_of(v) for column, v in zip(self.columns, values, strict=True)]

    def line(self, tag: str, label: str, cells: Sequence[str], level: int, css: str = "") -> str:
        """One row, indented by its level."""
        bold = "b" if css else "span"  # inside the cell, since the unit ch is wider in bold type
        width = f"width:{self.label_width}ch"
        first = f'<span style="{width}"><{bold}>{escape(label)}</{bold}></span>'
        others = "".join(
            f"<span{self._style(number)}><{bold}>{escape(cell)}</{bold}></span>"
            for number, cell in enumerate(cells)
        )
        return f'<{tag} class="row {css}" style="--level:{level}">{first}{others}</{tag}>'

    def left_out(self) -> Iterator[str]:
        """What hides columns where there is no room for them, and a note of those."""
        if not self.room:
            return
        rules = (
            f"@container (width < {room}ch) {{.tf .from{room} {{display: none}}}}\n"
            f"@container (width >= {room}ch) {{.tf .below{room} {{display: none}}}}\n"
            for room in dict.fromkeys(self.room.values())
        )
        yield f"<style>\n{''.join(rules)}</style>"
        names = (
            f'<span class="below{room}">{", " if said else "left out at this width: "}'
            f"{escape(self.header[number])}</span>"
            for said, (number, room) in enumerate(self.room.items())
        )
        yield f'<p class="dim">{"".join(names)}</p>'

    def _room(self) -> dict[int, int]:
        """The least width at which a column is shown, for those that may go, in this order."""
        left = dict(enumerate(map(self._least, range(len(self.columns)))))
        found = {}
        for number in sorted(left, key=lambda number: -self.columns[number].need):
            if self.columns[number].need:
                label = min(self.label_width, _LABEL)
                found[number] = label + sum(width + _GAP for width in left.values())
                del left[number]
        return found

    def _least(self, number: int) -> int:
        width = self.widths[number]
        return min(width, _TEXT) if self.columns[number].is_left else width

    def _style(self, number: int) -> str:
        where = f"from{self.room[number]}" if number in self.room else ""
        css = _classes("text" if self.columns[number].is_left else "num", where)
        least = f";min-width:{self._least(number)}ch" * self.columns[number].is_left
        return f'{css} style="width:{self.widths[number]}ch{least}"'
