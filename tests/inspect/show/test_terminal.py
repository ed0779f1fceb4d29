"""A summary in a terminal: it fits the width."""

from __future__ import annotations

import io

from rich.console import Console

from tests.inspect.small_models import model_and_inputs
from torchfake.inspect import summary


def test_in_a_terminal() -> None:
    model, inputs = model_and_inputs("llama")
    found = summary(model, inputs)
    for width in (200, 60):
        console = Console(width=width, file=io.StringIO())
        console.print(found)
        shown = console.file.getvalue()
        assert "3 x LlamaDecoderLayer" in shown
        assert all(len(line) <= width for line in shown.splitlines())
