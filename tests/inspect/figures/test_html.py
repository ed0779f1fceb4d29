"""HTML of a summary: the same tree, every tag closed, every text escaped."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

from tests.inspect.small_models import MODELS, model_and_inputs
from torchfake.inspect import check, diff, summary, weights
from torchfake.inspect.figures.html import STYLE, blocks_html, breakable
from torchfake.inspect.records.record import Record, shown
from torchfake.inspect.show.rows import Block, Column, as_lines, table
from torchfake.inspect.show.summary_table import tree_blocks


class _Tags(HTMLParser):
    """Checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "wbr":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("name", MODELS)
def test_html_is_the_same_tree(name: str) -> None:
    model, inputs = model_and_inputs(name)
    found = summary(model, inputs)
    tags = _Tags()
    tags.feed(found._repr_html_())
    assert not tags.open
    shown = "".join(tags.text)
    tree, *_ = tree_blocks(found)
    for row in tree.rows:
        assert row.name in shown
        for column, value in zip(tree.columns[1:], row.values, strict=True):
            assert column.text_of(value) in shown


def test_html_escapes() -> None:
    class Odd(nn.Module):
        pass

    Odd.__name__ = "<script>alert(1)</script>"
    shown = summary(Odd())._repr_html_()
    assert "<script>" not in shown
    assert html.escape(Odd.__name__) in shown


def test_every_cell_of_a_table_has_headers() -> None:
    module = nn.Linear(64, 64)
    found = weights(module, "nf4", "h100-80gb")._repr_html_()
    assert found.count('<th scope="col"') == 5
    assert '<th scope="row">h100-80gb</th>' in found


@pytest.mark.parametrize(
    "found",
    [
        diff(nn.Linear(2, 3), nn.Linear(2, 4)),
        weights(nn.Linear(64, 64), "nf4", "h100-80gb"),
        check(nn.Linear(2, 3), torch.ones(1, 2)),
    ],
    ids=lambda found: type(found).__name__,
)
def test_records_are_tables(found: Record) -> None:
    shown = found._repr_html_()
    assert "<table" in shown
    assert "<pre" not in shown


def test_code_is_escaped_and_can_be_reached_by_keys() -> None:
    class Code(Record):
        pass

    shown.register(Code)(lambda found, *, depth=None: [Block(code="a < b")])
    assert '<pre tabindex="0">a &lt; b</pre>' in Code()._repr_html_()


def test_the_verdict_is_coloured() -> None:
    found = weights(nn.Linear(64, 64), "nf4", "h100-80gb")._repr_html_()
    assert '<td><span class="yes">yes</span></td>' in found
    assert '<td><span class="yes">yes</span> for the weights alone' in found


def test_lines_break_in_names_after_signs_and_numbers_stay_whole() -> None:
    assert breakable("aten._softmax_data, 1.5 GB/s of <x>") == (
        "aten.<wbr>_softmax_<wbr>data, 1.5 GB/s of &lt;x&gt;"
    )
    assert breakable("try --kv-dtype fp8") == 'try <span class="flag">--kv-dtype</span> fp8'


def test_what_was_held_at_another_moment_stands_behind_the_bar() -> None:
    class Held(Record):
        pass

    line = "  buffers", "8 B, at another moment 9 B"
    shown.register(Held)(lambda found, *, depth=None: [as_lines([line], {"buffers": 1.0})])
    assert re.search(
        r">8 B</span><span class=\"bar\"[^>]*></span> <span class=\"rest\">at another",
        Held()._repr_html_(),
    )


def test_on_a_phone_a_table_loses_the_columns_that_a_narrow_terminal_loses() -> None:
    columns = (
        Column("GPU", lambda n: f"gpu-{n}"),
        Column("memory", lambda n: n, "{} GB (long)".format, "{} GB".format),
        Column("layout", lambda n: f"tp={n}", need=2, under="layout "),
        Column("most users of this way", lambda n: n, str, need=3),
        Column("each token of each user under load", lambda n: n, str),
    )
    page = blocks_html([table([1, 2], columns)])
    assert '<th scope="col" class="wider">layout</th>' in page
    assert '<tr class="narrow"><td colspan="3">layout tp=2</td></tr>' in page
    assert '<p class="dim narrow">left out at this width: most users of this way</p>' in page
    assert '<span class="wider">2 GB (long)</span><span class="narrow">2 GB</span>' in page


def test_a_table_that_fits_a_phone_is_whole() -> None:
    columns = Column("GPU", str), Column("layout", lambda n: f"tp={n}", need=2)
    page = blocks_html([table([1], columns)]).removeprefix(STYLE)
    assert "wider" not in page
    assert "narrow" not in page


def test_a_tree_says_which_columns_have_no_room() -> None:
    columns = (
        Column("module", lambda line: "x" * 20),
        Column("output", lambda line: "y" * 50, need=7),
        Column("parameters", lambda line: 10**9, "{:,}".format),
        Column("active", lambda line: 10**9, "{:,}".format, need=3),
    )
    rows = table(range(2), columns)
    tree = rows._replace(rows=[row._replace(indent=i) for i, row in enumerate(rows.rows)])
    page = blocks_html([tree])
    said = '<span class="below86">left out at this width: output</span>'
    assert f'{said}<span class="below56">, active</span></p>' in page
    assert "@container (width < 86ch) {.tf .from86 {display: none}}" in page
    assert '<span class="text from86" style="width:50ch;min-width:28ch">' in page
    assert '<span class="num" style="width:13ch">' in page
