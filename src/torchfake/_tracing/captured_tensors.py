"""``make_fx``: tensors that are not inputs of the trace become attributes of its graph.

Input: the operations that torch dispatches while ``make_fx`` traces. Output: these operations, on
tensors that have a node in the graph. Invariant: a tensor that existed before the trace (a weight,
a tensor in a closure) is never written: the operation gets its fake copy, which is an attribute of
the graph.

torch's proxy mode does not trace an operation if one of its tensors is of a class that the mode
does not know, and has no node. This is the case for fake weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    get_proxy_slot,
    has_proxy_slot,
    track_tensor_tree,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake._core import devices
from torchfake._torch import dispatcher
from torchfake.fake import fake_like

_LIFTS = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default}
"""Operators that create a constant from data in the code; no other code holds their result."""


class CapturedTensors:
    """The tensors of a trace that existed before it, and their fake copies.

    Args:
        named: for each tensor: its name in the module ("" if it has none), the tensor, its copy.
    """

    def __init__(self, named: Iterable[tuple[str, torch.Tensor, torch.Tensor]] = ()) -> None:
        self.names: dict[int, str] = {}  # by the identity of the copy
        self.originals: dict[int, torch.Tensor] = {}  # by the identity of the copy
        self._copies: dict[int, torch.Tensor] = {}  # by the identity of the original or the copy
        for name, original, fake in named:
            self._add(original, fake)
            if name:
                self.names.setdefault(id(fake), name)

    def _add(self, original: torch.Tensor, fake: torch.Tensor) -> None:
        self.originals[id(fake)] = original
        self._copies[id(original)] = self._copies[id(fake)] = fake

    def fake_copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake copy of `tensor`, or `tensor` itself if it is a fake copy."""
        fake = self._copies.get(id(tensor))
        if fake is None:
            fake = fake_like(tensor)
            self._add(tensor, fake)
        return fake


class CaptureMode(TorchDispatchMode):
    """Context inside ``make_fx`` in which operations get only tensors that have a node."""

    def __init__(self, captured: CapturedTensors) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._captured = captured

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        mode: Any = get_proxy_mode()
        if mode is None:
            return func(*args, **kwargs)
        if _reads_a_value(func):
            with disable_proxy_modes_tracing():
                return func(*args, **kwargs)
        if func in _LIFTS:
            made = func(*args, **kwargs)
            # The proxy mode would compute with a copy of the data, on a device that may not exist.
            get_proxy_slot(made, mode.tracer).constant = None
            return made

        def in_graph(value: Any) -> Any:
            if isinstance(value, torch.device):
                return devices.decode(value)
            return self._with_node(value, mode.tracer)

        kinds = (torch.Tensor, torch.device)
        args, kwargs = pytree.tree_map_only(kinds, in_graph, (args, kwargs))
        return func(*args, **kwargs)

    def _with_node(self, tensor: torch.Tensor, tracer: Any) -> torch.Tensor:
        """`tensor` if it has a node; otherwise its fake copy, with a ``get_attr`` node."""
        if has_proxy_slot(tensor, tracer):
            return tensor
        fake = self._captured.fake_copy_of(tensor)
        if not has_proxy_slot(fake, tracer):
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            target = tracer.get_fresh_qualname(
                "_param_constant" if is_parameter else "_tensor_constant"
            )
            setattr(tracer.root, target, fake)
            name = self._captured.names.get(id(fake), target).replace(".", "_")
            with disable_proxy_modes_tracing():
                proxy = tracer.create_proxy("get_attr", target, (), {}, name=name)
                track_tensor_tree(fake, proxy, constant=None, tracer=tracer)
        return fake


def _reads_a_value(func: Any) -> bool:
    """Whether an operator gives a Python number, as ``item()`` does, or torchfake reads a value."""
    return dispatcher.current_fake_mode() is None or torch.Tag.data_dependent_output in func.tags
