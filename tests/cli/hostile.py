"""What names, files and arguments may contain, and what the command may never print for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

NAMES = [
    "\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "two\nlines", "back\rto", "\b\b\x7f", "nul\0",
    "\u202eright", "\u2066isolate", "zero\u200bwidth", "line\u2028end", "\ud800", "[red]x[/red]",
    "[link=x]", "<b>x</b>", "<script>alert(1)</script>", "</script>", "&amp;", "%{id}", "{0}", "%s",
    "é中\U0001f600", "\ufeffmark", " ", "", "'\"`$(x)", "x" * 500, "\udcff", "\U000e0041tag",
]  # fmt: skip
"""Names of modules, tensors and files."""

CONFIGS: dict[str, bytes] = {
    "empty": b"",
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "nested": b'{"model_type": "llama", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "utf16": '{"model_type": "llama"}'.encode("utf-16"),
    "latin": b'{"model_type": "\xe9"}',
    "binary": bytes(range(256)) * 20,
    "nan": b'{"model_type": "llama", "hidden_size": NaN}',
    "infinite": b'{"model_type": "llama", "hidden_size": 1e999}',
    "huge": b'{"model_type": "llama", "hidden_size": ' + b"9" * 4000 + b"}",
    "huger": b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}",
    "zero": b'{"model_type": "llama", "num_attention_heads": 0}',
    "type_list": b'{"model_type": ["llama"]}',
    "type_dict": b'{"model_type": {"a": 1}}',
    "type_escape": b'{"model_type": "\\u001b[31m\\u202ellama\\ud800"}',
    "type_long": b'{"model_type": "' + b"x" * 100_000 + b'"}',
    "architectures_int": b'{"model_type": "llama", "architectures": 5, "hidden_size": "wide"}',
    "architectures_null": b'{"model_type": "lama", "architectures": [null, 3, {}]}',
    "key_escape": b'{"model_type": "llama", "hidden_size": "\\u001b[31m"}',
    "dtype_bad": b'{"model_type": "llama", "dtype": "\\u001b[31m", "torch_dtype": 5}',
    "string": b'"llama"',
    "number": b"1" * 3000,
}
"""Contents of a config.json; none can be built."""


class Hostile(nn.Module):
    """A module of such names, of a class of such a name."""

    def __init__(self) -> None:
        super().__init__()
        for name in filter(None, NAMES):
            self._modules[name] = nn.Linear(2, 2)
            self._parameters[name + "p"] = nn.Parameter(torch.ones(2, 3))
            self._buffers[name + "b"] = torch.ones(4)
        self.tied = next(iter(self._modules.values()))


Hostile.__name__ = Hostile.__qualname__ = "Ho\x1b[1mst\u202eile"


def assert_harmless(text: str) -> None:
    """No control character, no change of direction, no half of a pair; no traceback."""
    bad = {c for c in text if not c.isprintable() and c != "\n"}
    assert not bad, bad
    assert "Traceback" not in text


def assert_sensible(result: tuple[Any, str, str], *, codes: tuple[int, ...] = (2,)) -> str:
    """The exit code is one of those documented, an error is one line; all that was said."""
    code, out, err = result
    assert code in codes, (code, err)
    assert_harmless(out)
    assert_harmless(err)
    if code == 2:
        is_usage = err.startswith("Usage: ") and "\nError: " in err
        assert is_usage or (err.startswith("error: ") and err.count("\n") == 1)
        assert len(err) < 2000
        assert not out
    return out + err


def sampled(items: Sequence[Any], number: int, count: int) -> Sequence[Any]:
    """So many of the items, others for each number; all of them in the long run."""
    if os.environ.get("HOSTILE_ALL"):
        return items
    return [items[(number * count + i) % len(items)] for i in range(count)]


def named_file(folder: Path, name: str) -> Path | None:
    """A path of such a name, or None where it can be none."""
    if not name or "\0" in name or "/" in name or len(name) > 200:
        return None
    return folder / name
