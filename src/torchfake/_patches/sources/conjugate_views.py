"""Methods of real tensors that read memory after they have resolved a lazy view, in a mode.

Input: a real tensor whose conjugate or negative bit is set. Output: what it gives outside of modes.
Invariant: of any other tensor, and outside a mode, each method is the original.

C++ resolves the bit by an operator, whose result is fake in a mode, and reads the memory of that.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import modes
from torchfake._patches.patch import Patch, replacing
from torchfake._tensor import known_values
from torchfake._torch import subclass


@replacing
def _resolved_in_eager(original: Any, /, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.tolist`` and ``Tensor.numpy``, with ``force=True``."""
    if modes.current() is None or not _is_conjugate_or_negative(tensor):
        return original(tensor, *args, **kwargs)
    with known_values.without_fake_mode():
        return original(tensor, *args, **kwargs)


def _is_conjugate_or_negative(tensor: torch.Tensor) -> bool:
    with subclass.no_torch_functions():
        return tensor.is_conj() or tensor.is_neg()


PATCHES = [Patch(torch.Tensor, name, _resolved_in_eager) for name in ("tolist", "numpy")]
