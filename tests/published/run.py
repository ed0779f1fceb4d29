"""Prints the tables of docs/memory.md and docs/time.md: ``nox -s published``."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator

from tests.published.rows import ROWS
from tests.published.throughput import ROWS as THROUGHPUT
from tests.published.throughput import Row


def table() -> Iterator[str]:
    """The lines of the table of bytes and FLOPs, in Markdown."""
    yield "| source | setting | published | estimate | ratio |"
    yield "|---|---|---|---|---|"
    for row in ROWS:
        found = row.estimated()
        is_close = abs(found / row.published - 1) <= row.bound
        ratio = f"{found / row.published:.3f}" + ("" if is_close else f": {row.reason}")
        sizes = f"{row.published:,} {row.unit} | {round(found, 3):,} {row.unit}"
        yield f"| {row.source} | {row.setting} | {sizes} | {ratio} |"


def throughput_table() -> Iterator[str]:
    """The lines of the table of tokens/s, and what follows from it."""
    yield "| setting | published | plan | ratio | |"
    yield "|---|---|---|---|---|"
    found: list[tuple[Row, float]] = []
    for row in THROUGHPUT:
        tokens = row.timing().tokens_per_second
        found.append((row, tokens / row.published))
        kept = "kept back" if row.kept_back else ""
        ratio = f"{tokens / row.published:.2f}"
        yield f"| {row.setting} | {row.published:,} | {tokens:,.0f} | {ratio} | {kept} |"
    yield ""
    for name, is_kept in (("chosen with", False), ("kept back", True)):
        errors = [abs(ratio - 1) for row, ratio in found if row.kept_back is is_kept]
        over = sum(error > 0.15 for error in errors)
        yield (
            f"{name}: {len(errors)} rows, median error {statistics.median(errors):.1%}, "
            f"{over} over 15 %, worst {max(errors):.0%}"
        )
    right, pairs = ranked([(row, row.published * ratio) for row, ratio in found])
    yield f"pairs of layouts of a model that are 3 % apart: {right} of {pairs} in the right order"


def ranked(found: list[tuple[Row, float]]) -> tuple[int, int]:
    """How many pairs of layouts are in the right order, and how many there are: of one model and
    length on one kind of GPU, more than 3 % apart.
    """
    right = pairs = 0
    for i, (row, tokens) in enumerate(found):
        for other, other_tokens in found[:i]:
            if row.subject != other.subject:
                continue
            published = row.published / other.published
            if abs(published - 1) > 0.03:
                pairs += 1
                right += (published > 1) == (tokens > other_tokens)
    return right, pairs


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in (*table(), "", *throughput_table()):
        print(line, flush=True)  # noqa: T201
