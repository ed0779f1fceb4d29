"""Records are drawn by files that are imported when one is first shown, and not before."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import nn

from torchfake.inspect import summary
from torchfake.inspect.records.record import (
    Record,
    html_fragment,
    plain_text,
    register_on_first_use,
    shown,
)
from torchfake.inspect.show.rows import Block, as_lines


def test_what_draws_is_imported_by_the_first_record_shown() -> None:
    script = """
import sys
import torchfake
drawing = [f"torchfake.inspect.show.{name}" for name in ("text", "terminal", "html", "figures")]
others = ["rich", "plotly", "pandas", "typer", "transformers", "torchfake.distributed.text"]
assert not [name for name in (*drawing, *others) if name in sys.modules]
import torch
found = torchfake.summary(torch.nn.Linear(3, 4))
assert "Linear" in str(found)
assert "torchfake.inspect.show.text" in sys.modules
assert not [name for name in (*drawing[1:], *others) if name in sys.modules]
assert "Linear" in found._repr_html_()
assert "torchfake.inspect.figures.html" in sys.modules
assert not [name for name in others if name in sys.modules]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True, repr=False)
class Plain(Record):
    """A record for which only rows are registered."""

    text: str


@shown.register
def _(found: Plain, *, depth: int | None = None) -> list[Block]:
    return [as_lines([("said", found.text)])]


def test_a_record_with_rows_is_shown_everywhere() -> None:
    record = Plain("a < b")
    assert repr(record) == str(record) == "said  a < b"
    console = Console(width=20, file=StringIO())
    console.print(record)
    assert console.file.getvalue() == "said  a < b\n"
    assert "<td>a &lt; b</td>" in html_fragment(record)
    with pytest.raises(TypeError, match="there is no figure of a Plain"):
        record.plot()


class Silent(Record):
    """A record for which nothing is registered."""


def test_a_record_without_a_text() -> None:
    with pytest.raises(TypeError, match="there is no text for a Silent"):
        str(Silent())


def test_a_file_that_does_not_register_what_it_is_imported_for() -> None:
    class Other(Record):
        """A record whose loader names a file that registers nothing."""

    register_on_first_use(shown, Other, "torchfake.inspect.records.units")
    for _ in range(2):
        with pytest.raises(TypeError, match="there is no text for a Other"):
            str(Other())


def test_depth_is_passed_on() -> None:
    found = summary(nn.Sequential(nn.Linear(3, 4)), torch.ones(2, 3))
    assert "(0) Linear" in plain_text(found)
    assert "(0) Linear" not in plain_text(found, depth=0)
