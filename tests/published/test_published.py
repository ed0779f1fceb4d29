"""Estimates against figures that others published: the quick ones; ``nox -s published`` has all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.published.rows import ROWS, Row

PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # by GPT-BigCode of transformers 5.20
@pytest.mark.parametrize("row", [r for r in ROWS if r.is_quick], ids=lambda r: r.setting)
def test_a_figure_is_reached(row: Row) -> None:
    assert abs(row.ratio() - 1) <= row.bound


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.setting)
def test_the_page_has_every_row(row: Row) -> None:
    (line,) = (line for line in PAGE.splitlines() if f"| {row.setting} | {row.published:,}" in line)
    ratio, _, reason = line.split("|")[5].strip().partition(": ")
    assert reason == row.reason
    if not reason:
        assert abs(float(ratio) - 1) <= row.bound
