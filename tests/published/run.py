"""Prints the tables of docs/memory.md, docs/time.md and docs/serving.md: ``nox -s published``."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterator
from typing import Any

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
        ratio = f"{round(tokens) / row.published:.2f}"  # of the number that is shown
        yield f"| {row.setting} | {row.published:,} | {tokens:,.0f} | {ratio} | {use_of(row)} |"
    yield ""
    for name, is_kept in (("fitted", False), ("held out", True)):
        ratios = [ratio for row, ratio in found if row.kept_back is is_kept and not row.is_compiled]
        half, most = error_bar(ratios)
        yield (
            f"{name}: {len(ratios)} rows, half within {half:.1%}, nine in ten within {most:.1%}, "
            f"worst {max(abs(ratio - 1) for ratio in ratios):.0%}"
        )
    right, pairs = ranked([(row, row.published * ratio) for row, ratio in found])
    result = f"{right} of {pairs} ranked correctly"
    yield f"pairs of layouts of one model that differ by more than 3 %: {result}"


def use_of(row: Row) -> str:
    """What a row is for."""
    if row.is_compiled:
        return "ranking only"
    return "held out" if row.kept_back else ""


def by_use(found: list[tuple[Any, float]]) -> Iterator[tuple[str, list[tuple[Any, float]]]]:
    """The rows with their ratios that an efficiency was chosen on, and those that are held out."""
    for name, is_held_out in (("chosen on", False), ("held out", True)):
        some = [(row, ratio) for row, ratio in found if row.is_held_out is is_held_out]
        if some:
            yield name, some


def line_of(name: str, row: Any, ratio: float) -> str:
    """A row whose time is published in milliseconds, with what was estimated of it."""
    use = " held out" if row.is_held_out else ""
    times = f"{row.milliseconds} ms, estimate {ratio * row.milliseconds:.1f}, {ratio:.2f}"
    return f"{name}: {times}{use}"


def error_bar(ratios: list[float]) -> tuple[float, float]:
    """How far half of the ratios are from 1 at most, and nine in ten."""
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    return statistics.median(errors), errors[math.ceil(0.9 * len(errors)) - 1]


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
