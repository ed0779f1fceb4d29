"""The text of recorded graphs."""

from __future__ import annotations

import sys

import pytest
import torch
from expecttest import assert_expected_inline as expect
from torch import nn

from torchfake import deferred_init, deferred_mode, graph


def without_locations(tensor: torch.Tensor) -> str:
    """The text without source locations."""
    lines = [str(line).partition("  #")[0] for line in graph(tensor)]
    return "\n".join([*lines, f"return {graph(tensor).result}"])


def test_notation() -> None:
    with deferred_mode():
        x = torch.rand(8, 4)
        x.mul_(2).t()[1:, :2].fill_(0.5)
        y = (x.to(torch.bfloat16) * torch.ones(4, dtype=torch.bfloat16)).sum(dim=1, keepdim=True)
    expect(
        without_locations(y),
        """\
$0: f32[8, 4] = aten.rand([8, 4], device=cpu, pin_memory=False)
$1: f32[8, 4] = aten.mul_($0, 2)
$2: f32[8, 4] = aten.fill_($1.as_strided([3, 2], [1, 4], 1), 0.5)
$3: bf16[8, 4] = aten._to_copy($2, dtype=bfloat16)
$4: bf16[4] = aten.ones([4], dtype=bfloat16, device=cpu, pin_memory=False)
$5: bf16[8, 4] = aten.mul($3, $4)
$6: bf16[8, 1] = aten.sum($5, [1], True)
return $6""",
    )


def test_several_results_and_real_tensors() -> None:
    real = torch.ones(2, 2)
    with deferred_mode():
        q, r = torch.linalg.qr(torch.zeros(2, 2) + real)
        out = torch.stack([q, r])[1]
    expect(
        without_locations(out),
        """\
$0: f32[2, 2] = aten.zeros([2, 2], device=cpu, pin_memory=False)
$1: f32[2, 2] = aten.add($0, <real f32[2, 2]>)
$2: f32[2, 2], $3: f32[2, 2] = aten.linalg_qr($1)
$4: f32[2, 2, 2] = aten.stack([$2, $3])
return $4.as_strided([2, 2], [2, 1], 4)""",
    )


def test_source_locations() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    (line,) = graph(deferred_init(Block).weight)
    is_qualified = sys.version_info >= (3, 11)  # code objects have no such name before
    name = "test_source_locations.<locals>.Block.__init__" if is_qualified else "__init__"
    assert line.where.startswith(f"{name} at test_graph_text.py:")
    assert line.op == "aten.ones"


def test_an_initializer_is_one_line() -> None:
    layer = deferred_init(nn.Linear, 4, 4)
    nn.init.orthogonal_(layer.weight, gain=2.0)
    expect(
        without_locations(layer.weight),
        """\
$0: f32[4, 4] = torch.nn.init.orthogonal_(<empty f32[4, 4]>, 2.0)
return $0""",
    )


def test_a_graph_that_was_tampered_with_is_not_shown() -> None:
    with deferred_mode():
        y = torch.ones(3) * 2
    assert len(graph(y)) == 2
    op = y._fake_storage.deferred.contents.op  # type: ignore[attr-defined]
    op.args[0].contents.op.number = op.number + 1
    with pytest.raises(AssertionError, match="reads its future"):
        graph(y)
