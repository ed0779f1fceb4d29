"""Errors on one line."""

from __future__ import annotations

from torchfake.inspect.records.messages import import_refused, one_line


def test_one_line_is_one_line():
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(one_line(ValueError("word " * 1000))) < 430


def test_the_first_error_of_an_import_is_shown():
    first = AttributeError("no such flag")
    error = ImportError("Could not import module 'LlamaConfig'")
    error.__cause__ = RuntimeError("Failed to import")
    error.__cause__.__cause__ = first
    said = str(import_refused("LlamaConfig", error))
    assert said.endswith("; the first error was AttributeError: no such flag")
    assert str(import_refused("x", first)) == (
        "x could not be imported: AttributeError: no such flag"
    )
