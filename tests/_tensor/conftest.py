"""What the tests of autocast share: fake copies of arguments, and the dtypes of a result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from torchfake import fake_like

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


HALVES = pytest.mark.parametrize("half", [BF16, F16])


def fake_copies(tree: Any, device: str | None = None) -> Any:
    """`tree` with a fake copy in place of each real tensor, ready for autograd as that is."""

    def copy(real: torch.Tensor) -> torch.Tensor:
        return fake_like(real.detach(), device=device).requires_grad_(real.requires_grad)

    return pytree.tree_map_only(torch.Tensor, copy, tree)


def dtypes(result: Any) -> list[Any]:
    """The dtypes of the tensors in a result, and the types of what else there is."""
    leaves = pytree.tree_leaves(result)
    return [leaf.dtype if isinstance(leaf, torch.Tensor) else type(leaf) for leaf in leaves]


def outcome(function: Callable[[], Any]) -> Any:
    """What `function` gives: dtypes, or None where it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dtypes(function())
        except Exception:
            return None


@pytest.fixture
def without_onednn() -> Iterator[None]:
    """OneDNN's LSTM is another operator, which raises under autocast on CPUs without bfloat16."""
    previous = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns about Intel GPUs
    yield
    torch._C._set_mkldnn_enabled(previous)
