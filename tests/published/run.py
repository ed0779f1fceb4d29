"""Prints the table of docs/memory.md: ``nox -s published``."""

from __future__ import annotations

import warnings

from tests.published.rows import ROWS


def table() -> list[str]:
    """The lines of the table, in Markdown."""
    lines = ["| source | setting | published | estimate | ratio |", "|---|---|---|---|---|"]
    for row in ROWS:
        found = row.estimated()
        is_close = abs(found / row.published - 1) <= row.bound
        ratio = f"{found / row.published:.3f}" + ("" if is_close else f": {row.reason}")
        sizes = f"{row.published:,} {row.unit} | {round(found, 3):,} {row.unit}"
        lines.append(f"| {row.source} | {row.setting} | {sizes} | {ratio} |")
    return lines


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("\n".join(table()))  # noqa: T201
