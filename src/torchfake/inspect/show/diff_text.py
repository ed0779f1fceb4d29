"""A Diff as plain text: totals of both sides, and a section for each kind of difference.

Input: a Diff. Output: ASCII text. Invariant: all of the Diff is shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfake.errors import printable
from torchfake.inspect.diff import Diff


def diff_text(diff: Diff) -> str:
    """All of a Diff as ASCII text."""
    lines = list(_aligned(diff.totals()))
    for heading, found in diff.sections():
        count = sum(line.num_tensors for line in found)
        lines += ["", f"{heading} ({count:,})"]
        lines += _aligned([("", line.name, line.text) for line in found])
    lines += ["", f"alike ({diff.num_equal:,})"]
    lines += [f"note  {printable(note)}" for note in diff.notes]
    return "\n".join(lines).encode("ascii", "backslashreplace").decode()


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
