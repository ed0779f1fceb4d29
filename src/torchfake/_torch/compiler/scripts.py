"""TorchScript: run as written, and the C++ functions that call scripts, fold what they compute, or
trace.

Input: scripts. Output: the switch of the executor, names of functions and their owners, and what is
in graphs. Invariant:
a script that is run as written keeps nothing of the run: no constant, no profile, no plan; what it
kept before stays.

The executor of a script profiles its first run, folds every operator whose arguments are constants
(``torch.arange(4)`` is one), and differentiates the rest symbolically from the second run on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchfake._torch.contexts import Setting

optimizes = torch._C._get_graph_executor_optimize
"""Whether scripts are profiled and optimized on this thread."""

set_optimizing = torch._C._set_graph_executor_optimize
"""Sets :func:`optimizes`, as ``torch.jit.optimized_execution`` does."""


def optimizing(is_on: bool) -> Setting:
    """Context: scripts are optimized, or run as written, on this thread. torch 2.12 to 2.15."""
    return Setting(optimizes, set_optimizing, is_on)


CLASSES = (torch._C.ScriptFunction, torch._C.ScriptMethod)
"""The classes of what runs a script when it is called."""


def owner_of(script: Any) -> Any:
    """The module, in C++, whose method `script` is; None for a function."""
    return script.owner if isinstance(script, torch._C.ScriptMethod) else None


def tensors_of(module: Any) -> list[torch.Tensor]:
    """The parameters and buffers of a module in C++ and of those inside it."""
    found: list[torch.Tensor] = []
    for of_kind in (torch._C.ParameterDict, torch._C.BufferDict):
        tensors: Any = of_kind(module)
        found += (tensor for _, tensor in tensors.items())
    for _, child in torch._C.ModuleDict(module).items():
        found += tensors_of(child)
    return found


_FOLDING = ("constant_propagation", "fold_", "frozen", "optimize_for_inference")

bindings = torch._C

FOLDING = [
    "_freeze_module",
    *(n for n in dir(torch._C) if n.startswith("_jit_pass_") and any(f in n for f in _FOLDING)),
]
"""Names, in :data:`bindings`, of what computes values and writes them into a graph."""

PRINTING = [
    (cls, name) for cls in (bindings.Graph, bindings.Node) for name in ("__str__", "__repr__")
]
"""Owners and names of what prints graphs, with the values of constants."""

_MODULE = bindings.ScriptModule

READING = [
    (bindings, name)
    for name in dir(bindings)
    if "import_ir_module" in name or name.startswith("_load_jit_module")
]
"""Owners and names of what reads scripts from files. torch 2.12 to 2.15."""

WRITING = [
    *((_MODULE, name) for name in dir(_MODULE) if name.lstrip("_").startswith("save")),
    *((bindings, name) for name in dir(bindings) if name.startswith("_save_jit_module")),
]
"""Owners and names of what writes the module that is the first argument. torch 2.12 to 2.15."""

TRACING = [
    *((torch._C, f"_create_function_from_trace{end}") for end in ("", "_with_dict")),
    *((torch._C.ScriptModule, f"_create_method_from_trace{end}") for end in ("", "_with_dict")),
]
"""Owners and names of what calls a function, records it and returns a script, or adds a method to
the module that is the first argument and returns None. torch 2.11 to 2.15."""

CHECK_OF_TRACES = (torch.jit._trace, "_check_trace")
"""Owner and name of what compares the results of a trace with those of its function."""


_TRACER = torch._C._dispatch_key_parse("Tracer")
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded


def _tracing() -> tuple[Any, bool]:
    """The trace that is being made on this thread, and whether operators are left out of it, as
    they are inside a dispatch to Python.
    """
    return torch._C._get_tracing_state(), _is_excluded(_TRACER)


def _set_tracing(before: tuple[Any, bool]) -> None:
    trace, is_excluded = before
    _set_excluded(_TRACER, False)  # torch refuses to set a trace otherwise
    torch._C._set_tracing_state(trace)  # type: ignore[attr-defined]
    _set_excluded(_TRACER, is_excluded)


def untraced() -> Setting:
    """Context: what is done on this thread is not recorded by the trace that is being made."""
    return Setting(_tracing, _set_tracing, (None, False))


def is_tracing() -> bool:
    """Whether a trace is being made on this thread."""
    return torch._C._get_tracing_state() is not None


def traced() -> Setting:
    """Context: operators that are called inside a dispatch to Python are recorded by the trace."""
    return Setting(
        lambda: _is_excluded(_TRACER), lambda value: _set_excluded(_TRACER, value), False
    )


def settings_of_convolutions() -> tuple[bool, bool, bool, bool]:
    """The settings that C++ passes to ``aten._convolution``, and a trace records."""
    cudnn = torch.backends.cudnn
    return cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32


def graphs_of(script: Any) -> Iterator[Any]:
    """The graphs of a function, or of all methods of a module in C++ and of those inside it."""
    if isinstance(script, torch._C.ScriptFunction):
        yield script.graph
        return
    for name in script._method_names():
        yield script._get_method(name).graph
    for _, child in torch._C.ModuleDict(script).items():
        yield from graphs_of(child)


def tensor_constants(graph: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """The nodes of a graph that are constant tensors, and these tensors."""
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node, node.t("value")


def set_constant(node: Any, value: torch.Tensor) -> None:
    """Make `value` the tensor that a node is."""
    node.t_("value", value)


def map_devices(graph: Any, mapped: Callable[[torch.device], torch.device]) -> None:
    """Exchange the devices that the tensors of a graph had when it was traced."""
    for value in [*graph.inputs(), *_outputs_in(graph)]:
        before = value.type()
        after = _on_devices(before, mapped)
        if after is not before:
            value.setType(after)


def _on_devices(known: Any, mapped: Callable[[torch.device], torch.device]) -> Any:
    """The type of a value, with the devices of the tensors that it is or has."""
    if known.kind() == "TensorType" and known.device() is not None:
        return known.with_device(mapped(known.device()))
    if known.kind() == "TupleType" and "device=" in known.str():
        return bindings.TupleType([_on_devices(each, mapped) for each in known.elements()])
    return known


def _outputs_in(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield from node.outputs()
        for inner in node.blocks():
            yield from _outputs_in(inner)


_DEEPEST = 64  # calls inside each other; a class or an interface stays a call

_ASKING = {
    **dict.fromkeys(("prim::is_cpu", "prim::is_meta", "aten::get_device"), None),
    "prim::is_cuda": "cuda",
}
"""Questions about the device of a tensor, and the only type for which C++ answers otherwise than a
fake would; None if it does for every one."""

_COMPARING = ("aten::eq", "aten::ne", "prim::type", "prim::index", "aten::str", "aten::format")

_OWN_LAYERS = "torch/nn/"


def decides_by_device(script: Any, device_type: str | None) -> str:
    """Where a script, or what it calls, decides by the device of a tensor: a line of its source, or
    "". In C++ that is the device on which fakes are carried. Torch's own layers choose a kernel by
    it, not a result. torch 2.13 to 2.15.

    Args:
        script: one of `CLASSES`.
        device_type: of the accelerator that fakes report, if any.
    """
    graph = _inlined(script.graph)
    kinds = [kind for kind, only in _ASKING.items() if only in (None, device_type)]
    nodes = [node for kind in kinds for node in graph.findAllNodes(kind)]
    for node in graph.findAllNodes("prim::device"):
        users = [use.user for use in node.output().uses()]
        nodes += (user for user in users if user.kind() in _COMPARING)
    places = [_source_of(node) for node in nodes]
    return next((_line_in(place) for place in places if _OWN_LAYERS not in place), "")


def _inlined(graph: Any) -> Any:
    """A copy of a graph with those of what it calls. Each pass goes one call deeper, or more."""
    graph = graph.copy()
    for _ in range(_DEEPEST):
        if not graph.findAllNodes("prim::CallFunction") + graph.findAllNodes("prim::CallMethod"):
            break
        torch._C._jit_pass_inline(graph)
    return graph


def _source_of(node: Any) -> str:
    """The place in the source of a node, or of one that takes its result: not every one has any."""
    kind = str(node.kind())
    while not node.sourceRange() and node.outputsSize() == 1 and node.output().uses():
        node = node.output().uses()[0].user
    return node.sourceRange() or kind


def _line_in(place: str) -> str:
    """The line that a place in the source underlines a part of."""
    above, marked, _ = place.partition("~")
    return above.rstrip().rpartition("\n")[2].strip() if marked else place
