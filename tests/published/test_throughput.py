"""Throughput against figures that others published: three rows; ``nox -s published`` has all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.published.run import error_bar, ranked, use_of
from tests.published.throughput import ROWS, MptRow, Row
from torchfake.inspect.timing.compared import COMPARISONS, LANGUAGE

PAGE = (Path(__file__).parents[2] / "docs" / "time.md").read_text()
LINES = {line.split("|")[1].strip(): line for line in PAGE.splitlines() if line.startswith("| ")}
QUICK = [row for row in ROWS if isinstance(row, MptRow) and row.size in ("125m", "350m")]


@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.setting)
def test_a_figure_is_reached(row: Row) -> None:
    tokens = row.timing().tokens_per_second
    assert abs(tokens / row.published - 1) < 0.15
    _, published, planned, *_ = _cells(row)
    assert (published, planned) == (f"{row.published:,}", f"{tokens:,.0f}")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.setting)
def test_the_page_has_every_row(row: Row) -> None:
    _, published, planned, ratio, kept = _cells(row)
    assert published == f"{row.published:,}"
    assert f"{_number(planned) / row.published:.2f}" == ratio
    assert kept == use_of(row)


def test_the_error_that_is_said_is_that_of_the_page() -> None:
    cells = [_cells(row) for row in ROWS if row.kept_back and not row.is_compiled]
    ratios = [_number(planned) / _number(published) for _, published, planned, *_ in cells]
    half, most = error_bar(ratios)
    (said,) = (each for each in COMPARISONS if each.kind == LANGUAGE and "h100-80gb" in each.gpus)
    assert (said.half, said.most) == (round(100 * half), math.ceil(100 * most))
    assert half < 0.15


def test_nine_in_ten_pairs_are_in_the_right_order() -> None:
    right, pairs = ranked([(row, _number(_cells(row)[2])) for row in ROWS])
    assert pairs > 50
    assert right >= 0.9 * pairs
    assert f"3 %: {right} of {pairs} ranked correctly" in PAGE


def test_pairs_of_one_subject_are_ranked() -> None:
    near = MptRow("7b", 1, 8, "a100-80gb", 1, 1, False, 100)
    far = MptRow("7b", 1, 16, "a100-80gb", 1, 1, False, 90)
    same = MptRow("7b", 1, 32, "a100-80gb", 1, 1, False, 101)
    other = MptRow("3b", 1, 8, "a100-80gb", 1, 1, False, 500)
    assert ranked([(near, 120.0), (far, 80.0), (same, 1.0), (other, 1.0)]) == (1, 2)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _cells(row: Row) -> list[str]:
    return [cell.strip() for cell in LINES[row.setting].split("|")[1:-1]]
