"""The text of a diff: sections, folded lines, totals."""

from __future__ import annotations

import json

from torch import nn

from tests.inspect.compared_models import (
    add_buffer,
    change_dtype,
    change_kind,
    change_shape,
    freeze,
    make_buffer_unsaved,
    stack,
    tie,
)
from torchfake.inspect.contents.diff import diff


def test_text() -> None:
    assert (
        diff(stack(), stack(16, 5, bias=False)).plain()
        == """\
different: 3 tensors only in A, 2 only in B, 8 of another shape; 3 alike

A  Module  297 values    1.19 kB  14 tensors
B  Module  1,433 values  5.74 kB  13 tensors

only in A (3)
  layers.0-2.bias  [8] float32

only in B (2)
  layers.3-4.weight  [16, 16] float32

different (8)
  head.weight        [5, 8] -> [5, 16]
  layers.0-2.weight  [8, 8] -> [16, 16]
  norm.bias          [8] -> [16]
  norm.running_mean  [8] -> [16]
  norm.running_var   [8] -> [16]
  norm.weight        [8] -> [16]

alike (3)"""
    )


def test_text_of_each_kind_of_difference() -> None:
    a, b = stack(), stack()
    for edit in (
        change_shape,
        change_dtype,
        freeze,
        add_buffer,
        change_kind,
        make_buffer_unsaved,
        tie,
    ):
        edit(b)
    text = diff(a, b).plain()
    for line in (
        "head.scale  [] float32 buffer",
        "head.weight        [5, 8] -> [5, 9], trainable -> frozen",
        "layers.1.bias      float32 -> bfloat16",
        "layers.2.weight    not tied -> tied to layers.0.weight",
        "norm.running_mean  buffer -> parameter, frozen -> trainable",
        "norm.running_var   buffer -> non-persistent buffer",
    ):
        assert f"\n  {line}\n" in text


def test_text_is_ascii_and_a_dict_is_json() -> None:
    module = nn.ModuleDict({"größe": nn.Linear(2, 2, bias=False)})
    found = diff(module, nn.Linear(2, 2, bias=False))
    assert found.plain().isascii()
    assert repr(found) == str(found) == found.plain()
    again = json.loads(json.dumps(found.to_dict()))
    assert again["only_a"][0]["name"] == "größe.weight"
    assert again["is_equal"] is False
