"""A Report as text: rows of a table, lines of totals, and both as plain text of any width.

Enters: a Report. Leaves: strings; how they are coloured and where they go is the caller's affair.
Invariant: plain text is ASCII and does not depend on a terminal. 1 GB is 10^9 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchfake.inspect.report import Report
from torchfake.inspect.tree import ModuleNode, Size, TensorNode

HEADER = ("module", "parameters", "bytes", "buffer bytes", "tensors")


class Row(NamedTuple):
    """One line of the table: a module, or a row of equal blocks."""

    is_last: tuple[bool, ...]  # per level above: was that the last of its siblings
    label: str  # "(layers) 24 x BlenderbotEncoderLayer"
    tensors: tuple[str, ...]  # "weight [8, 4]", "bias [8]"
    parameters: str
    bytes: str
    buffer_bytes: str
    is_folded: bool  # stands for several blocks

    @property
    def cells(self) -> tuple[str, ...]:
        """The columns after the label, as HEADER names them."""
        return self.parameters, self.bytes, self.buffer_bytes, ", ".join(self.tensors)


def count_text(count: int) -> str:
    """A count as people say it.

    >>> count_text(2_696_268_800), count_text(16)
    ('2.70 billion', '16')
    """
    names = ("", " thousand", " million", " billion", " trillion", " quadrillion")
    return _scaled(count, names)


def bytes_text(size_bytes: int) -> str:
    """Bytes in units of powers of 1000.

    >>> bytes_text(10_785_075_200), bytes_text(-2048)
    ('10.8 GB', '-2.05 kB')
    """
    return _scaled(size_bytes, (" B", " kB", " MB", " GB", " TB", " PB"))


def _scaled(number: int, units: tuple[str, ...]) -> str:
    size, power = float(abs(number)), 0
    while size >= 999.5 and power + 1 < len(units):  # 999.5 would be shown as 1000
        size, power = size / 1000, power + 1
    sign = "-" if number < 0 else ""
    digits = 0 if power == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{sign}{size:.{digits}f}{units[power]}"


def rows(report: Report, *, depth: int | None = None) -> list[Row]:
    """The table, down to `depth` levels below the root."""
    usual = _Usual(report)
    return list(_rows(report.tree, (), depth, usual))


class _Usual:
    """What most tensors of a model are, which a row need not repeat."""

    def __init__(self, report: Report) -> None:
        self.dtype = next(iter(report.by_dtype), "")
        self.device = next(iter(report.by_device), "")
        self.trainable = report.tree.size.num_trainable > 0


def _rows(
    node: ModuleNode, is_last: tuple[bool, ...], depth: int | None, usual: _Usual
) -> Iterator[Row]:
    label, block, folded = _class_text(node), node, node.repeat > 1
    while block.folded_block is not None:
        block, folded = block.folded_block, True
    if node.name:
        label = f"({node.name}) {label}"
    tensors = _tensor_texts(block, usual)
    yield Row(is_last, label, tensors, *_size_cells(node.total), is_folded=folded)
    if depth == 0:
        return
    for i, child in enumerate(block.children):
        last = i + 1 == len(block.children)
        yield from _rows(child, (*is_last, last), None if depth is None else depth - 1, usual)


def _class_text(node: ModuleNode) -> str:
    times = f"{node.repeat} x " if node.repeat > 1 else ""
    block = node.folded_block
    return times + (node.class_name if block is None else _class_text(block))


def _size_cells(size: Size) -> tuple[str, str, str]:
    return (
        f"{size.num_parameters:,}" if size.num_parameters else "",
        bytes_text(size.parameter_bytes) if size.num_parameters else "",
        bytes_text(size.buffer_bytes) if size.num_buffer_values else "",
    )


def _tensor_texts(node: ModuleNode, usual: _Usual) -> tuple[str, ...]:
    if node.shared_with is not None:
        return (f"same module as {node.shared_with}",)
    return tuple(_tensor_text(tensor, usual) for tensor in node.tensors)


def _tensor_text(tensor: TensorNode, usual: _Usual) -> str:
    if tensor.tied_to is not None:
        return f"{tensor.name} tied to {tensor.tied_to}"
    shape = "lazy" if tensor.shape is None else f"[{', '.join(map(str, tensor.shape))}]"
    words = [tensor.name, shape]
    if tensor.dtype != usual.dtype:
        words.append(tensor.dtype)
    if tensor.device != usual.device:
        words.append(f"on {tensor.device}")
    if tensor.kind == "buffer":
        words.append("buffer" if tensor.persistent else "unsaved buffer")
    elif not tensor.trainable and usual.trainable:
        words.append("frozen")
    return " ".join(words)


def summary(report: Report) -> list[tuple[str, str]]:
    """The lines under the table, each a name and what is to be said."""
    size = report.tree.size
    lines = [("parameters", _parameters_text(size))]
    if size.num_frozen:
        lines.append(("trainable", _count_both(size.num_trainable)))
        lines.append(("frozen", _count_both(size.num_frozen)))
    if size.num_buffer_values:
        num_values = f"{size.num_buffer_values:,} value{'s' * (size.num_buffer_values > 1)}"
        lines.append(("buffers", f"{num_values}, {bytes_text(size.buffer_bytes)}"))
    lines.append(("dtype", _shares(report.by_dtype)))
    lines.append(("device", _shares(report.by_device)))
    lines.append(("time", _time_text(report)))
    lines.append(("peak memory", _memory_text(report)))
    lines.extend(("note", note) for note in report.notes)
    return lines


def _parameters_text(size: Size) -> str:
    return f"{_count_both(size.num_parameters)}, {bytes_text(size.parameter_bytes)}"


def _count_both(count: int) -> str:
    return f"{count:,} ({count_text(count)})" if count >= 1000 else str(count)


def _shares(by_name: dict[str, tuple[int, int]]) -> str:
    if len(by_name) == 1:
        return next(iter(by_name))
    return ", ".join(f"{name} {bytes_text(size)}" for name, (_, size) in by_name.items()) or "none"


def _time_text(report: Report) -> str:
    return f"{report.build_seconds:.2f} s to build, {report.resolve_seconds:.2f} s to import"


def _memory_text(report: Report) -> str:
    if report.peak_rss_bytes is None or report.peak_rss_increase_bytes is None:
        return "not known on this platform"
    increase = bytes_text(report.peak_rss_increase_bytes)
    return f"{increase} to build, {bytes_text(report.peak_rss_bytes)} in all"


def footnote(shown: list[Row]) -> str:
    """How to read a folded row, or nothing where there is none."""
    if any(row.is_folded for row in shown):
        return "An `n x` row counts all n blocks; the rows below it are those of one."
    return ""


def plain(report: Report, *, depth: int | None = None) -> str:
    """The whole report as ASCII text, columns padded to what they hold.

    Args:
        report: what to show.
        depth: how many levels below the root; all, if not given.
    """
    shown = rows(report, depth=depth)
    table = [("  " * len(row.is_last) + row.label, *row.cells) for row in shown]
    lines = [*_padded([HEADER, *table]), ""]
    if note := footnote(shown):
        lines += [note, ""]
    names = summary(report)
    width = max(len(name) for name, _ in names)
    lines += [f"{name:{width}}  {text}" for name, text in names]
    return "\n".join(lines)


def kept_columns(shown: list[Row]) -> list[int]:
    """The indices into Row.cells of the columns that hold anything."""
    return [i for i in range(len(HEADER) - 1) if any(row.cells[i] for row in shown)]


def _padded(table: list[tuple[str, ...]]) -> Iterator[str]:
    """The module to the left, numbers to the right, tensors last and ragged."""
    columns = [i for i in range(len(HEADER)) if i == 0 or any(line[i] for line in table[1:])]
    widths = {i: max(len(line[i]) for line in table) for i in columns}
    for line in table:
        cells = [
            line[i].rjust(widths[i]) if 0 < i < 4 else line[i].ljust(widths[i]) for i in columns
        ]
        yield "  ".join(cells).rstrip()
