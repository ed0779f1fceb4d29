"""Operators that torch takes apart in C++ by looking at the wrapper's device or data.

Enters: a call of one of them with a fake among its tensors. Leaves: its result, from operators
that the dispatcher then sees one by one. Invariant: these run above autograd, on tensors that
carry our dispatch key, and on no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake import _private, _values
from torchfake._attention import attention

aten = torch.ops.aten


def tensor_split(
    below: Callable[..., Any], tensor: torch.Tensor, places: torch.Tensor, dim: int = 0
) -> Any:
    """Splits at places that a CPU tensor holds; C++ reads them through a data pointer."""
    if places.device.type != "cpu":
        raise RuntimeError(
            "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on "
            f"{places.device}"
        )
    known = _values.read(places, "tensor_split()") if hasattr(places, "_fake_meta") else places
    return torch.tensor_split(tensor, known.tolist(), dim)


_private.own_kernel(aten.scaled_dot_product_attention.default, attention)
_private.own_kernel(aten.tensor_split.tensor_indices_or_sections, tensor_split)
