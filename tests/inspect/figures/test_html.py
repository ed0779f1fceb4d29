"""HTML of a summary: the same tree, every tag closed, every text escaped."""

from __future__ import annotations

import html
from html.parser import HTMLParser
from typing import Any

import pytest
from torch import nn

from tests.inspect.small_models import MODELS, model_and_inputs
from torchfake.inspect import summary
from torchfake.inspect.show.summary_table import tree_blocks


class _Tags(HTMLParser):
    """Checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
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
