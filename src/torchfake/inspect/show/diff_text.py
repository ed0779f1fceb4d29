"""A Diff as plain text: what differs, in one line; totals of both sides; a section for each kind.

Input: a Diff. Output: ASCII text. Invariant: the whole Diff is shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfake.errors import printable
from torchfake.inspect.contents.diff import Diff
from torchfake.inspect.show.lines import aligned_lines


def diff_text(diff: Diff) -> str:
    """The whole Diff as ASCII text."""
    lines = [printable(diff.headline), "", *_aligned(diff.totals())]
    for heading, count, found in diff.sections():
        lines += ["", f"{heading} ({count:,})"]
        lines += _aligned([("", line.name, line.text) for line in found])
    lines += ["", f"alike ({diff.num_equal:,})"]
    lines += [f"note  {printable(note)}" for note in diff.notes]
    return "\n".join(lines).encode("ascii", "backslashreplace").decode()


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Rows of cells, of which the last one is wrapped under itself."""
    names = [tuple(map(printable, row[:-1])) for row in rows]
    widths = [max(map(len, column)) for column in zip(*names, strict=True)]
    heads = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in names
    ]
    for head, text in aligned_lines([(h, row[-1]) for h, row in zip(heads, rows, strict=True)]):
        yield f"{head}{text}".rstrip()
