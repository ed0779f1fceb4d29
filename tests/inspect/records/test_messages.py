"""Errors on one line."""

from __future__ import annotations

from torchfake.inspect.records.messages import one_line


def test_one_line_is_one_line():
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(one_line(ValueError("word " * 1000))) < 430
