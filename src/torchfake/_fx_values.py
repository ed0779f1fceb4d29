"""What is known of the tensors in a graph, written on its nodes.

Enters: a graph module and inputs. Leaves: the same, with ``meta["val"]`` and
``meta["tensor_meta"]`` on its nodes. Invariant: ``val`` is a fake of torch's own kind that has the
shape, dtype, strides and device of torchfake's fake; those of one graph are of one mode, which is
what torch's passes ask for.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.passes.shape_prop import TensorMetadata
from torch.utils import _pytree as pytree

from torchfake._tensor import FakeTensor
from torchfake.errors import TraceError

_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


class TorchFakes:
    """Makes fakes of torch's own kind, all of one mode."""

    def __init__(self) -> None:
        from torch._subclasses import FakeTensorMode  # slow to import
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        # As torch.export makes it.
        shape_env = ShapeEnv(tracked_fakes=[], trace_asserts=True)
        self.mode: Any = FakeTensorMode(
            allow_non_fake_inputs=True, export=True, shape_env=shape_env
        )

    def for_values(self) -> Any:
        """Context: torch's tracers make their fakes in the mode of these."""
        from torch._guards import TracingContext, tracing

        return tracing(TracingContext(self.mode))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """One with the metadata of `tensor`, in no graph of autograd; it is never on ``meta``."""
        device = torch.device("cpu") if tensor.is_meta else tensor.device
        place = (tensor.shape, tensor.stride())
        with self.mode:
            return torch.empty_strided(*place, dtype=tensor.dtype, device=device)

    def of_all(self, value: Any) -> Any:
        """The same for the tensors in a tree."""
        return pytree.tree_map_only(torch.Tensor, self.of, value)


def tensor_metadata(tensor: torch.Tensor) -> TensorMetadata:
    """The record of torch's own shape propagation, which has no device."""
    formats = (f for f in _FORMATS if tensor.is_contiguous(memory_format=f))
    return TensorMetadata(
        tensor.shape,
        tensor.dtype,
        tensor.requires_grad,
        tensor.stride(),
        next(formats, None),
        is_quantized=False,
        qparams={},
    )


class _Propagation(Interpreter):
    """Runs a graph on fakes and keeps what each node gives."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._fakes = TorchFakes()
        self.found: list[dict[str, Any]] = []

    def run_node(self, n: Node) -> Any:
        try:
            result = super().run_node(n)
        except Exception as error:
            raise TraceError(
                "The graph was traced, and does not run on the inputs: at "
                f"{n.format_node()}: {type(error).__name__}: {error}"
            ) from error
        known = {"val": self._fakes.of_all(result), "type": _type(result)}
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result)):
            known["tensor_meta"] = pytree.tree_map_only(torch.Tensor, tensor_metadata, result)
        self.found.append(known)
        return result


def _type(result: Any) -> type:
    """Of what a fake stands for."""
    if isinstance(result, nn.Parameter):
        return nn.Parameter
    return torch.Tensor if isinstance(result, FakeTensor) else type(result)


def propagate(module: GraphModule, twin: nn.Module, values: tuple[Any, ...]) -> None:
    """Run the fake twin of `module` and write what its nodes give on those of `module`."""
    propagation = _Propagation(twin)
    propagation.run(*values)
    for node, known in zip(module.graph.nodes, propagation.found, strict=True):
        node.meta.update(known)


def in_order(module: GraphModule, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The values of a graph's inputs, of arguments by the names they had before it was traced.

    Those that were fixed have a number behind their name in the graph.
    """
    signature = inspect.signature(module.forward)
    bound = signature.bind_partial()
    for name in signature.parameters:
        original = name if name in arguments else re.sub(r"_\d+$", "", name)
        if original in arguments:
            bound.arguments[name] = arguments[original]
    bound.apply_defaults()
    return bound.args
