"""Fakes of torch's own kind (``torch._subclasses.FakeTensor``), all of one fake mode.

Input: tensors, most of them torchfake's fakes. Output: torch's fakes with the same shape, strides,
dtype and device. Invariant: all fakes of one graph belong to one ``FakeTensorMode``, which torch's
passes require.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


class TorchFakes:
    """Makes fakes of torch's own kind, all of one mode."""

    def __init__(self) -> None:
        from torch._subclasses import FakeTensorMode  # slow to import
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        # The options that torch.export uses.
        shape_env = ShapeEnv(tracked_fakes=[], trace_asserts=True)
        self.mode: Any = FakeTensorMode(
            allow_non_fake_inputs=True, export=True, shape_env=shape_env
        )

    def as_tracing_mode(self) -> Any:
        """Context: torch's tracers make the fakes that they need in this mode."""
        from torch._guards import TracingContext, tracing

        return tracing(TracingContext(self.mode))

    def from_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake with the metadata of `tensor`, outside autograd's graph, and never on ``meta``."""
        device = torch.device("cpu") if tensor.is_meta else tensor.device
        layout = (tensor.shape, tensor.stride())
        with self.mode:
            return torch.empty_strided(*layout, dtype=tensor.dtype, device=device)

    def from_tree(self, tree: Any) -> Any:
        """The tree with one of torch's fakes in place of each tensor."""
        return pytree.tree_map_only(torch.Tensor, self.from_tensor, tree)
