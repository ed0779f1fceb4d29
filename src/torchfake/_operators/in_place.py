"""The size of what an elementwise operator writes in place, which no call changes.

Input: a call. Output: eager's error, or nothing. Invariant: nothing is written before the error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from torchfake._operators.operator_call import Call
from torchfake._torch import cpp_metadata


def check_size(call: Call) -> None:
    """Refuse a call whose result has no elements where what is written has some. Torch's Python,
    which runs on meta tensors, would resize that, with a warning; it refuses other sizes itself.
    """
    tensors = call.tensors
    if all(tensor.numel() for tensor in tensors) or not tensors[0].numel():
        return
    if _writes_each_element(call.func):
        try:
            result = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        except RuntimeError:
            return  # the run says which sizes do not go together
        size = list(tensors[0].shape)
        raise RuntimeError(
            f"output with shape {size} doesn't match the broadcast shape {[*result]}"
        )


@cache
def _writes_each_element(func: Any) -> bool:
    """Whether an operator in place is elementwise; tags are missing in some overloads."""
    name = func._schema.name.removeprefix("aten::")
    untagged = "floor_divide_", "__iand__", "__ior__", "__ixor__"
    return name.endswith("_") and (name in untagged or cpp_metadata.is_pointwise(func))
