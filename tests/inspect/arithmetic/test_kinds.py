"""Operators without a formula: bound by memory, by tag, schema or name; or not known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.opinfo.flops import UNCOUNTED
from torchfake.inspect.arithmetic.kinds import COPY, ELEMENTWISE, LOOKUP, REDUCTION, kind_of

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (aten.add.Tensor, ELEMENTWISE),
        (aten.add_.Tensor, ELEMENTWISE),
        (aten._foreach_add_.List, ELEMENTWISE),
        (aten._foreach_norm.Scalar, REDUCTION),
        (aten.elu_backward.default, ELEMENTWISE),
        (aten._fused_adamw_.default, ELEMENTWISE),
        (aten._thnn_fused_lstm_cell.default, ELEMENTWISE),
        (aten.sum.dim_IntList, REDUCTION),
        (aten.native_layer_norm_backward.default, REDUCTION),
        (aten._softmax.default, REDUCTION),
        (aten.max_pool2d_with_indices.default, REDUCTION),
        (aten.upsample_linear1d.default, ELEMENTWISE),
        (aten._to_copy.default, COPY),
        (aten.constant_pad_nd.default, COPY),
        (aten.embedding_dense_backward.default, LOOKUP),
        (aten.zeros.default, ELEMENTWISE),
        (aten.randn_like.default, ELEMENTWISE),
        (aten._fft_c2c.default, ELEMENTWISE),
        (aten._sparse_mm_reduce_impl.default, None),
        (aten.linalg_qr.default, None),
        (aten._linalg_svd.default, None),
        (aten._cdist_forward.default, None),
        (aten.mm.default, None),
    ],
)
def test_kinds(op: object, kind: str | None) -> None:
    assert kind_of(op) == kind


def test_nothing_is_taken_for_granted_of_other_peoples_operators() -> None:
    """Their names say nothing; their tags do."""
    library = torch.library.Library("kinds_test", "FRAGMENT")
    library.define("softmax(Tensor x) -> Tensor")
    library.define("tagged(Tensor x) -> Tensor", tags=[torch.Tag.pointwise])
    assert kind_of(torch.ops.kinds_test.softmax.default) is None
    assert kind_of(torch.ops.kinds_test.tagged.default) == ELEMENTWISE
    library._destroy()


def test_the_page_lists_what_is_not_known() -> None:
    text = Path("docs/inspect.md").read_text(encoding="utf-8")
    part = text.partition("Of torch's operator database, these have no formula:")[2]
    listed = re.findall(r"`(aten\.\w+)`", part.partition(". Operators of")[0])
    assert sorted(listed) == sorted(UNCOUNTED)
