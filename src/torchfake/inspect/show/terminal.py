"""Records for a terminal: tree guides and colours, fitted to the terminal's width.

Input: a record and a rich console. Output: rich renderables. Invariant: the texts are those of
``show/text``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from torchfake.errors import printable
from torchfake.inspect.check import Checked
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fits
from torchfake.inspect.records.record import Record, renderables
from torchfake.inspect.records.units import bytes_text, compared_bytes
from torchfake.inspect.show import summary_table, text
from torchfake.inspect.show.headline import headline
from torchfake.inspect.show.lines import aligned_lines
from torchfake.inspect.summary import Summary


@renderables.register
def _(found: Record, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    text, code = str(found), getattr(found, "shown_code", "")
    yield Text(text.removesuffix(code).rstrip("\n"))
    if code:
        yield Text("")
        yield Text(code)


@renderables.register
def _(found: Summary, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield Text(printable(headline(found)), style="bold")
    yield Text("")
    yield from _tree(found, console, depth)
    yield _lines(text.summary_lines(found))


@renderables.register
def _(found: Estimate, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield _lines(text.verdict_lines(found) + text.estimate_lines(found))


@renderables.register
def _(found: Checked, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield _lines(text.checked_lines(found))


@renderables.register
def _(found: Fits, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield _lines(text.verdict_lines(found) + text.estimate_lines(found.shown, found.shown_fit))
    yield Text("")
    grid = _fits_table(found, compared_bytes)
    if console.measure(grid, options=_unbounded(console)).maximum > console.width:
        grid = _fits_table(found, bytes_text)
    yield grid
    yield Text("")
    yield Text(text.reserved_note(found), style="dim")


@renderables.register
def _(found: Inspection, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield Text(printable(headline(found.summary, found.weights)), style="bold")
    yield Text("")
    yield from _tree(found.summary, console, depth)
    yield _lines(
        text.totals(found.summary) + text.quantized_lines(found.weights) + text.costs(found)
    )
    if found.memory is not None:
        yield Text("")
        yield from renderables(found.memory, console)


_VERDICT_STYLES = {"yes": "green", "tight": "yellow", "no": "red"}


def _fits_table(found: Fits, size: Callable[[int], str]) -> Table:
    grid = _table(text.fits_header(found), left=text.FITS_LEFT_ALIGNED)
    for row in text.fits_rows(found, size):
        cells = [Text(printable(cell)) for cell in row]
        cells[5].stylize(_VERDICT_STYLES[row[5]])
        grid.add_row(*cells)
    return grid


def _tree(summary: Summary, console: Console, depth: int | None) -> Iterator[RenderableType]:
    rows = summary_table.rows(summary, depth=summary.depth if depth is None else depth)
    grid = _wide_table(rows)
    if console.measure(grid, options=_unbounded(console)).maximum > console.width:
        grid = _narrow_table(rows, console.width)
    yield grid
    yield Text("")
    if note := summary_table.footnote(rows):
        yield Text(note, style="dim")
        yield Text("")


def _lines(lines: list[tuple[str, str]]) -> Text:
    """The lines, which are wrapped already: a path that is too long for the width stays whole."""
    parts = [((name, "bold"), text) for name, text in aligned_lines(lines)]
    return Text("\n", no_wrap=True).join(Text.assemble(*part) for part in parts)


def _unbounded(console: Console) -> ConsoleOptions:
    return console.options.update(width=10_000)


def _table(headers: Sequence[str], *, left: Sequence[str] = summary_table.LEFT_ALIGNED) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        is_left = header in left
        grid.add_column(
            header, justify="left" if is_left else "right", no_wrap=not is_left, overflow="fold"
        )
    return grid


def _wide_table(rows: list[summary_table.Row]) -> Table:
    """A table of all columns that are not empty."""
    columns = summary_table.filled_columns(rows)
    header = summary_table.header()
    grid = _table([header[0], *(header[i + 1] for i in columns)])
    for row in rows:
        label = Text.assemble((_guides(row), "dim"), row.label)
        cells = (Text(row.cells[i], style="cyan" if _is_shapes(i) else "") for i in columns)
        grid.add_row(label, *cells)
    return grid


def _is_shapes(i: int) -> bool:
    return summary_table.header()[i + 1] in summary_table.LEFT_ALIGNED


def _narrow_table(rows: list[summary_table.Row], width: int) -> Table:
    """A table of the main columns; tensors are beside their module if they fit, else below it."""
    headers = ("module", "parameters", "bytes")
    grid = _table(headers)
    parameters = max(len(headers[1]), *(len(row.parameters) for row in rows))
    label_width = width - parameters - max(len(headers[2]), *(len(row.bytes) for row in rows)) - 4
    for row in rows:
        grid.add_row(_narrow_label(row, label_width), Text(row.parameters), Text(row.bytes))
    return grid


def _narrow_label(row: summary_table.Row, width: int) -> Text:
    label = Text.assemble((_guides(row), "dim"), row.label)
    texts = [*([f"gives {row.output}"] if row.output else []), *row.tensors]
    beside, guides = ", ".join(texts), _guides_under(row)
    if beside and len(label) + 2 + len(beside) <= width:
        return Text.assemble(label, "  ", (beside, "cyan"))
    fits = len(guides) + len(beside) <= width
    for line in [beside] if beside and fits else texts:
        label = Text.assemble(label, ("\n" + guides, "dim"), (line, "cyan"))
    return label


def _guides(row: summary_table.Row) -> str:
    if not row.is_last:
        return ""
    ancestors = "".join("   " if last else "│  " for last in row.is_last[:-1])
    return ancestors + ("└─ " if row.is_last[-1] else "├─ ")


def _guides_under(row: summary_table.Row) -> str:
    return "".join("   " if last else "│  " for last in row.is_last) + "   "
