"""Errors in the words of the command line.

Input: the text of an error, which names arguments of Python functions. Output: the text with the
options of the command line in their place. Invariant: only arguments that are options too change;
text that names options already is left alone.
"""

from __future__ import annotations

import re

_OPTIONS = (
    "accumulate", "allocator", "answer", "autocast", "batch", "checkpoint", "decode", "dtype",
    "engine", "gpu", "keep_gradients", "mesh", "micro_batch", "offload", "optimizer", "precision",
    "schedule", "seq", "sequence_parallel", "serve", "vary", "weights", "zero",
)  # fmt: skip
"""Arguments of Python functions that are options of the same name."""

_PARTS = "backend|block_size|cache|cache_dtype|context|prefill|prompt|users"
"""Arguments of ``Serve``, which are parts of the text of ``--serve``."""

_VALUE = r"""(?:(["'])(?P<quoted>[^"']*)["']|\((?P<several>[^)]*)\)|(?P<bare>[^\s,;:)]*))"""
_ARGUMENT = re.compile(rf"""(?<![-\w.'"])(?P<name>{"|".join(_OPTIONS)})={_VALUE}""")
_PART = re.compile(rf"""\b({_PARTS})=["']([^"']*)["']""")

_WORDS = {"mode='training'": "--train", ", loss= and mode=": " and --train"}

_SAID = "on the command line"
"""In the text of an error, the beginning of the options that it names itself."""


def in_options(text: str) -> str:
    """The text of an error, with ``--batch 1`` for ``batch=1``, and ``--serve`` for ``serve=``.

    >>> in_options("write batch=1, or give serve= cache='dynamic'")
    'write --batch 1, or give --serve cache=dynamic'
    """
    if _SAID in text:
        return text
    for python, option in _WORDS.items():
        text = text.replace(python, option)
    return _PART.sub(r"\1=\2", _ARGUMENT.sub(_option, text))


def _option(found: re.Match[str]) -> str:
    option = f"--{found['name'].replace('_', '-')}"
    value = found["quoted"] or found["several"] or found["bare"] or ""
    value = "none" if value == "None" else value
    return option if value in ("", "True") else f"{option} {value.replace(', ', ',')}"
