"""Shape propagation: the metadata of each node's result, written on the nodes of a graph.

Input: a graph module, a fake copy of it, and inputs. Output: the same graph module, with
``meta["val"]``, ``meta["tensor_meta"]`` and ``meta["type"]`` on its nodes, as torch's ``ShapeProp``
writes them. Invariant: ``val`` is a fake of torch's own kind that has the shape, dtype, strides and
device of torchfake's fake; all fakes of one graph belong to one mode.
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

from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._tracing.torch_fakes import TorchFakes
from torchfake.errors import TraceError

_MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def _tensor_metadata(tensor: torch.Tensor) -> TensorMetadata:
    """The ``tensor_meta`` that torch's own shape propagation writes; it holds no device."""
    formats = (f for f in _MEMORY_FORMATS if tensor.is_contiguous(memory_format=f))
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
    """Runs a graph on fakes and collects the metadata of each node's result."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._fakes = TorchFakes()
        self.node_metas: list[dict[str, Any]] = []

    def run_node(self, n: Node) -> Any:
        try:
            result = super().run_node(n)
        except Exception as error:
            raise TraceError(
                "The graph was traced, and does not run on the inputs: at "
                f"{n.format_node()}: {type(error).__name__}: {error}"
            ) from error
        meta = {"val": self._fakes.from_tree(result), "type": _type_of_original(result)}
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result)):
            meta["tensor_meta"] = pytree.tree_map_only(torch.Tensor, _tensor_metadata, result)
        self.node_metas.append(meta)
        return result


def _type_of_original(result: Any) -> type:
    """The type of a node's result in eager: a fake stands for a plain tensor or a parameter."""
    if isinstance(result, nn.Parameter):
        return nn.Parameter
    return torch.Tensor if isinstance(result, FakeTensor) else type(result)


def propagate(module: GraphModule, copied: nn.Module, values: tuple[Any, ...]) -> None:
    """Run `copied`, the fake copy of `module`, and write the metadata on the nodes of `module`."""
    propagation = _Propagation(copied)
    propagation.run(*values)
    for node, meta in zip(module.graph.nodes, propagation.node_metas, strict=True):
        node.meta.update(meta)


def graph_inputs(module: GraphModule, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The values of a graph's inputs in order, from arguments by their names in the function.

    The graph appends a number to the names of arguments that were fixed with ``concrete_args``.
    """
    signature = inspect.signature(module.forward)
    bound = signature.bind_partial()
    for name in signature.parameters:
        original = name if name in arguments else re.sub(r"_\d+$", "", name)
        if original in arguments:
            bound.arguments[name] = arguments[original]
    bound.apply_defaults()
    return bound.args
