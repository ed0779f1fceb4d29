"""``make_fx`` on fakes: every operation is seen, and nothing but fakes is written.

Enters: what torch dispatches while ``make_fx`` traces. Leaves: the same operation on tensors that
have a node. Invariant: a tensor that was there before the trace is read, and never written; the
operation gets its fake twin, which is an attribute of the graph.

torch's proxies pass an operation on unseen if a tensor of a class they do not know has no node, as
weights have none.
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

from torchfake import _device, _private
from torchfake.fake import fake_like

_LIFTS = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default}
"""What makes a constant of data in the code: nobody else has the tensor."""


class Foreign:
    """The tensors of a trace that were there before it, and their twins.

    Args:
        named: the names in the module, the tensors, and their twins.
    """

    def __init__(self, named: Iterable[tuple[str, torch.Tensor, torch.Tensor]] = ()) -> None:
        self.names: dict[int, str] = {}  # of a twin, by its identity
        self.originals: dict[int, torch.Tensor] = {}
        self._twins: dict[int, torch.Tensor] = {}
        for name, original, twin in named:
            self._pair(original, twin)
            if name:
                self.names.setdefault(id(twin), name)

    def _pair(self, original: torch.Tensor, twin: torch.Tensor) -> None:
        self.originals[id(twin)] = original
        self._twins[id(original)] = self._twins[id(twin)] = twin

    def twin_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Itself, if it is a twin."""
        twin = self._twins.get(id(tensor))
        if twin is None:
            twin = fake_like(tensor)
            self._pair(tensor, twin)
        return twin


class ForeignTensors(TorchDispatchMode):
    """Context, inside ``make_fx``: operations get tensors that have a node."""

    def __init__(self, foreign: Foreign) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._foreign = foreign

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        mode: Any = get_proxy_mode()
        if mode is None:
            return func(*args, **kwargs)
        if _private.current_fake_mode() is None:  # a value that is known is being read
            with disable_proxy_modes_tracing():
                return func(*args, **kwargs)
        if func in _LIFTS:
            made = func(*args, **kwargs)
            # Proxies would compute with a copy of the data, also where its device is not there.
            get_proxy_slot(made, mode.tracer).constant = None
            return made
        if torch.Tag.data_dependent_output in func.tags:  # a number is known on the host, or not
            with disable_proxy_modes_tracing():
                return func(*args, **kwargs)

        def in_graph(value: Any) -> Any:
            if isinstance(value, torch.device):
                return _device.decode(value)
            return self._with_node(value, mode.tracer)

        kinds = (torch.Tensor, torch.device)
        args, kwargs = pytree.tree_map_only(kinds, in_graph, (args, kwargs))
        return func(*args, **kwargs)

    def _with_node(self, tensor: torch.Tensor, tracer: Any) -> torch.Tensor:
        if has_proxy_slot(tensor, tracer):
            return tensor
        twin = self._foreign.twin_of(tensor)
        if not has_proxy_slot(twin, tracer):
            kind = (
                "_param_constant" if isinstance(tensor, torch.nn.Parameter) else "_tensor_constant"
            )
            target = tracer.get_fresh_qualname(kind)
            setattr(tracer.root, target, twin)
            name = self._foreign.names.get(id(twin), target).replace(".", "_")
            with disable_proxy_modes_tracing():
                proxy = tracer.create_proxy("get_attr", target, (), {}, name=name)
                track_tensor_tree(twin, proxy, constant=None, tracer=tracer)
        return twin
