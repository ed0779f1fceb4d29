"""What was found for a terminal: guides, colours, fitted to its width.

Enters: a Summary, an Estimate, a Fits, an Inspection, and rich's console. Leaves: what rich prints.
Invariant: what is said is what :mod:`torchfake.inspect.text` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from torchfake.inspect import table, text
from torchfake.inspect.check import Checked
from torchfake.inspect.fit import Fits
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.memory import Estimate
from torchfake.inspect.summary import Summary


@singledispatch
def renderables(
    found: Any, console: Console, *, depth: int | None = None
) -> Iterator[RenderableType]:
    """What rich is to print for what was found.

    Args:
        found: a Summary, Estimate, Fits, Checked or Inspection; anything else is its text.
        console: to whose width it is fitted.
        depth: how many levels of a tree below its root; all, if not given.
    """
    yield Text(str(found))


@renderables.register
def _(found: Summary, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield from _tree(found, console, depth)
    yield _lines(text.totals(found))


@renderables.register
def _(found: Estimate, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield _lines(text.estimate_lines(found))


@renderables.register
def _(found: Checked, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield _lines(text.checked_lines(found))


@renderables.register
def _(found: Fits, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield from renderables(found.estimate, console)
    yield Text("")
    grid = _table(text.FITS_HEADER, left=("GPU", "fits", "largest"))
    for fit in found:
        style = "green" if fit.fits else "red"
        cells = text.fits_cells(fit)
        grid.add_row(*(Text(cell, style=style if i == 4 else "") for i, cell in enumerate(cells)))
    yield grid
    yield Text("")
    yield Text(text.reserved_note(found), style="dim")


@renderables.register
def _(found: Inspection, console: Console, *, depth: int | None = None) -> Iterator[RenderableType]:
    yield from _tree(found.summary, console, depth)
    yield _lines(text.totals(found.summary) + text.costs(found))
    if found.memory is not None:
        yield Text("")
        yield from renderables(found.memory, console)


def _tree(summary: Summary, console: Console, depth: int | None) -> Iterator[RenderableType]:
    shown = table.rows(summary, depth=depth)
    grid = _wide_table(shown)
    if console.measure(grid, options=_unbounded(console)).maximum > console.width:
        grid = _narrow_table(shown, console.width)
    yield grid
    yield Text("")
    if note := table.footnote(shown):
        yield Text(note, style="dim")
        yield Text("")


def _lines(lines: list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, said in lines:
        grid.add_row(Text(name, style="bold"), Text(said))
    return grid


def _unbounded(console: Console) -> ConsoleOptions:
    return console.options.update(width=10_000)


def _table(headers: Sequence[str], *, left: Sequence[str] = table.LEFT) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        is_left = header in left
        grid.add_column(
            header, justify="left" if is_left else "right", no_wrap=not is_left, overflow="fold"
        )
    return grid


def _wide_table(rows: list[table.Row]) -> Table:
    """Everything in columns; those that are empty left out."""
    kept = table.kept_columns(rows)
    grid = _table([table.HEADER[0], *(table.HEADER[i + 1] for i in kept)])
    for row in rows:
        label = Text.assemble((_guides(row), "dim"), row.label)
        cells = (Text(row.cells[i], style="cyan" if _is_shapes(i) else "") for i in kept)
        grid.add_row(label, *cells)
    return grid


def _is_shapes(i: int) -> bool:
    return table.HEADER[i + 1] in table.LEFT


def _narrow_table(rows: list[table.Row], width: int) -> Table:
    """Tensors beside their module where they fit and under it where not; only the main columns."""
    headers = ("module", "parameters", "bytes")
    grid = _table(headers)
    parameters = max(len(headers[1]), *(len(row.parameters) for row in rows))
    left = width - parameters - max(len(headers[2]), *(len(row.bytes) for row in rows)) - 4
    for row in rows:
        grid.add_row(_narrow_label(row, left), Text(row.parameters), Text(row.bytes))
    return grid


def _narrow_label(row: table.Row, width: int) -> Text:
    label = Text.assemble((_guides(row), "dim"), row.label)
    texts = [*([f"gives {row.output}"] if row.output else []), *row.tensors]
    beside, below = ", ".join(texts), _guides_below(row)
    if beside and len(label) + 2 + len(beside) <= width:
        return Text.assemble(label, "  ", (beside, "cyan"))
    fits = len(below) + len(beside) <= width
    for line in [beside] if beside and fits else texts:
        label = Text.assemble(label, ("\n" + below, "dim"), (line, "cyan"))
    return label


def _guides(row: table.Row) -> str:
    if not row.is_last:
        return ""
    above = "".join("   " if last else "│  " for last in row.is_last[:-1])
    return above + ("└─ " if row.is_last[-1] else "├─ ")


def _guides_below(row: table.Row) -> str:
    return "".join("   " if last else "│  " for last in row.is_last) + "   "
