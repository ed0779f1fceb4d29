"""FLOPs of attention kernels that are called directly, against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.inspect.arithmetic.counted import counted
from torchfake import fake_mode
from torchfake.inspect import estimate, summary

aten = torch.ops.aten
BATCH, HEADS, LENGTH, WIDTH = 2, 8, 128, 64
ONE = 4 * BATCH * HEADS * LENGTH * LENGTH * WIDTH  # two products
HALF = torch.bfloat16


def flash(q: Any, *rest: Any) -> Any:
    length = q.shape[1]
    return aten._flash_attention_forward(
        q, q, q, None, None, length, length, 0.0, False, False
    )[0]  # fmt: skip


def test_flash_attention_called_directly() -> None:
    """Its tensors are (batch, length, heads, width): torch's formula takes lengths for heads."""
    found = counted(flash, (BATCH, LENGTH, HEADS, WIDTH), dtype=HALF)
    assert found["aten._flash_attention_forward"] == ONE


def test_efficient_attention_called_directly() -> None:
    def run(q: Any) -> Any:
        with torch.no_grad():
            return aten._efficient_attention_forward(
                q, q, q, None, None, None, None, None, 0.0, 0, False
            )[0]  # fmt: skip

    found = counted(run, (BATCH, LENGTH, HEADS, WIDTH), dtype=HALF)
    assert found == {"aten._efficient_attention_forward": ONE}


def test_the_usual_way_is_as_torch_counts_it() -> None:
    shape = (BATCH, HEADS, LENGTH, WIDTH)
    found = counted(F.scaled_dot_product_attention, shape, shape, shape, dtype=HALF)
    assert [*found.values()] == [ONE, ONE * 5 // 2]


class Packed(torch.nn.Module):
    """Sequences behind each other."""

    def forward(self, q: Any, begins: Any) -> Any:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, q, q, begins, begins, 128, 128)


@pytest.mark.parametrize(
    ("begins", "scores"), [([0, 100, 256], 100**2 + 156**2), (None, 2 * 128**2)]
)
def test_packed_sequences(begins: list[int] | None, scores: int) -> None:
    """Of known lengths, the scores that there are; of others, the most that there may be. The
    module that registers torch's formulas is imported in the middle of the run.
    """
    with fake_mode():
        q = torch.empty(256, HEADS, WIDTH, dtype=HALF, requires_grad=True)
        unknown = torch.empty(3, dtype=torch.int32)
    given = unknown if begins is None else torch.tensor(begins, dtype=torch.int32)
    forward = 4 * HEADS * WIDTH * scores
    found = summary(Packed(), q, given, device="cuda")
    assert found.flops[""] == (forward, forward * 5 // 2)
    assert found.flops[""].recomputed == forward // 2
    timed = estimate(Packed(), q, given, gpu="h100-80gb", mode="training")
    assert timed.schedule.flops == forward * 7 // 2
    assert "flash attention backward" in timed.schedule.seconds_by_kind


def test_flex_attention_is_counted_and_timed() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(torch.nn.Module):
        def forward(self, q: Any, k: Any) -> Any:
            return flex_attention(q, k, k)

    with fake_mode():
        shape = BATCH, HEADS, LENGTH, WIDTH
        q, k = (torch.empty(shape, requires_grad=True) for _ in range(2))
    found = summary(Flex(), q, k, device="cuda").flops[""]
    assert found == (ONE, ONE * 5 // 2)
    timed = estimate(Flex(), q, k, gpu="h100-80gb", mode="training").schedule
    assert timed.flops == ONE * 7 // 2
    assert {"flash attention", "flash attention backward"} <= timed.seconds_by_kind.keys()
