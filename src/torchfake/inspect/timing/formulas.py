"""FLOPs of operators: torch's formulas, and ours where it has none.

Input: nothing. Output: a function for each operator. Invariant: a multiplication and an addition
are two; operators that are no matrix product, convolution or attention have no formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

aten = torch.ops.aten


def _grouped_product(a: Any, b: Any, *rest: Any, out_shape: Any = None, **more: Any) -> int:
    """The operations of a grouped matrix product, as ``_grouped_mm`` computes it for experts.

    Groups are along the dimension that is summed over, or along that of the rows; either way each
    row is multiplied with one matrix.
    """
    rows, shared = a[-2:]
    groups = a[0] if len(a) == len(b) == 3 else 1
    return int(2 * groups * rows * shared * b[-1])


@cache
def flop_formulas() -> Mapping[Any, Any]:
    """Torch's formulas and ours, by operator; imported on first use, since that takes a while."""
    from torch.utils import flop_counter

    def forward(query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
        return int(flop_counter.sdpa_flop_count(query, key, value))

    def backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
        return int(flop_counter.sdpa_backward_flop_count(grad, query, key, value))

    def flex_backward(query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
        grad = rest[2]  # after the result and the log-sum-exps
        return backward(grad or rest[0], query, key, value)

    uncounted = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,  # torch has it from 2.15 on
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
        aten._grouped_mm: _grouped_product,  # not in torch 2.15 either
        torch.ops.higher_order.flex_attention: forward,  # torch has both from 2.13 on
        torch.ops.higher_order.flex_attention_backward: flex_backward,
    }
    own = {op: count for op, count in uncounted.items() if op not in flop_counter.flop_registry}
    counter = flop_counter.FlopCounterMode(display=False, custom_mapping=own)
    formulas: Mapping[Any, Any] = counter.flop_registry
    return formulas


def recomputed_flops(func: Any, args: Any, count: int) -> int:
    """Of the FLOPs of an operator of the backward pass, those that repeat some of the forward pass:
    of fused attention, which does not keep the scores, one of the five products
    (``sdpa_backward_flop_count`` of torch/utils/flop_counter.py); of others none.
    """
    name = str(getattr(func, "_overloadpacket", func))
    if "attention" not in name or "backward" not in name or len(args) < 4:
        return 0
    query_width, value_width = args[1].shape[-1], args[3].shape[-1]
    return int(count * query_width // (3 * query_width + 2 * value_width))
