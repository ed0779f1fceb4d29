"""Text of unknown origin: whatever is in it, what is printed is printable."""

from __future__ import annotations

import sys

import pytest

from torchfake import errors
from torchfake.errors import printable


def test_every_character() -> None:
    for first in range(0, sys.maxunicode, 4096):
        text = "".join(map(chr, range(first, min(first + 4096, sys.maxunicode + 1))))
        assert printable(text).isprintable()
        printable(text).encode()
        assert printable(text) != text or text.isprintable()


def test_what_is_kept() -> None:
    assert printable("a\nb\x1b\t", keep="\n") == "a\nb\\x1b\\t"
    assert printable("é中 \\x1b") == "é中 \\x1b"


def test_every_error_of_ours() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        with pytest.raises(kind) as caught:
            raise kind("a\x1b[31m\u202e\ud800\nb")
        assert str(caught.value) == "a\\x1b[31m\\u202e\\ud800\nb"
