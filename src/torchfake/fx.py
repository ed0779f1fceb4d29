"""Tracing: graphs of modules that are fake, deferred, on ``meta`` or real.

Input: a module or function, and inputs. Output: torch's own graph modules and exported programs,
which hold the module's own tensors. Invariant: the module is not changed; tracers run a fake copy
of the module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree

from torchfake._core.arguments import check_flag, check_mapping
from torchfake._patches.entry import without_modes
from torchfake._torch.compiler import tracer_modes
from torchfake._tracing import fake_copies, trace_modes
from torchfake._tracing.bound_call import BoundCall, signature_of
from torchfake._tracing.captured_tensors import CapturedTensors, CaptureMode
from torchfake._tracing.export_without_cuda import decode_graphs, torch_fakes_without_cuda
from torchfake._tracing.meta_patcher import MetaAwareMethodsPatcher as MetaAwareMethodsPatcher
from torchfake._tracing.shape_propagation import graph_inputs, propagate
from torchfake._tracing.torch_fakes import TorchFakes
from torchfake.errors import TraceError

__all__ = ["MetaAwareMethodsPatcher", "export", "make_fx", "symbolic_trace"]


def symbolic_trace(
    root: nn.Module | Callable[..., Any],
    *inputs: Any,
    concrete_args: dict[str, Any] | None = None,
    **kwargs: Any,
) -> GraphModule:
    """``torch.fx.symbolic_trace``, with shapes, dtypes and devices on the nodes.

    Args:
        root: a module, or a function.
        inputs: arguments of the call that finds the shapes, real or fake; without any, nodes have
            no shapes. Values are never read.
        concrete_args: as in torch: arguments to fix, by name.
        kwargs: more inputs, by name.

    Returns:
        The graph module. Its layers, parameters and buffers are those of `root`.

    Raises:
        TraceError: if `root` cannot be traced, or does not run on the inputs.
        TypeError: if `root` cannot be called.

    >>> from torchfake import fake_mode
    >>> with fake_mode(fake_cuda=True):
    ...     layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).cuda()
    ...     x = torch.empty(2, 4, device="cuda")
    >>> for node in symbolic_trace(layers, x).graph.nodes:
    ...     print(node.op, node.target, list(node.meta["val"].shape), node.meta["val"].device)
    placeholder input [2, 4] cuda:0
    call_module 0 [2, 8] cuda:0
    call_module 1 [2, 8] cuda:0
    output output [2, 8] cuda:0
    """
    _check_callable(root)
    check_mapping(concrete_args, "concrete_args")
    with _errors("symbolic_trace", root), tracer_modes.torch_modes_kept():
        tensors = trace_modes.tensors_in(root, inputs, kwargs)
        with trace_modes.mode_for_constants(tensors):
            traced = _trace_symbolically(root, concrete_args)
        if inputs or kwargs:
            given = signature_of(root).bind_partial(*inputs, **kwargs).arguments
            arguments = {**(concrete_args or {}), **given}
            values = graph_inputs(traced, fake_copies.fake_inputs(arguments))
            copied, _ = fake_copies.fake_copy(traced)
            with trace_modes.unrecorded_fake_mode(tensors):
                propagate(traced, copied, values)
    return traced


def _trace_symbolically(root: Any, concrete_args: dict[str, Any] | None) -> GraphModule:
    """Trace a copy of `root`; the graph module has the layers and tensors of `root` itself."""
    if not isinstance(root, nn.Module):
        with trace_modes.prefer_proxies():
            return torch.fx.symbolic_trace(root, concrete_args)
    tracer, copied = torch.fx.Tracer(), fake_copies.copy_for_symbolic_trace(root)
    with trace_modes.prefer_proxies():
        graph = tracer.trace(copied, concrete_args)
    # The attributes of the graph are those of `root`, and the constants that the tracer added.
    attributes = nn.Module()
    added = {name: v for name, v in vars(tracer.root).items() if name not in vars(root)}
    vars(attributes).update({**added, **vars(root)})
    return GraphModule(attributes, graph, type(root).__name__)


def make_fx(
    function: nn.Module | Callable[..., Any],
    *inputs: Any,
    decomposition_table: dict[Any, Callable[..., Any]] | None = None,
    **kwargs: Any,
) -> GraphModule:
    """``torch.fx.experimental.proxy_tensor.make_fx``: the graph of the ATen operators that run.

    Args:
        function: a module, a method of a module, or a function. Tensors that a function refers to,
            also those of modules, become attributes of the graph.
        inputs: arguments of the call, real or fake. Arguments that hold tensors are the graph's
            inputs, in the order of the signature of `function`; their values are unknown. All
            other arguments are fixed.
        decomposition_table: as in torch.
        kwargs: more inputs, by name.

    Returns:
        The graph module. Its parameters and buffers are those of `function`, by their names.

    Raises:
        TraceError: if `function` does not run on the inputs, or reads an unknown value.
        TypeError: if `function` cannot be called.

    >>> from torchfake import fake_mode
    >>> with fake_mode():
    ...     layer = nn.Linear(4, 8)
    >>> for node in make_fx(layer, torch.ones(2, 4)).graph.nodes:
    ...     print(node.op, node.target)
    placeholder input_1
    get_attr weight
    call_function aten.t.default
    get_attr bias
    call_function aten.addmm.default
    output output
    """
    _check_callable(function)
    check_mapping(decomposition_table, "decomposition_table")
    tensors = trace_modes.tensors_in(function, inputs, kwargs)
    kept = tracer_modes.torch_modes_kept()
    with _errors("make_fx", function), kept, trace_modes.unrecorded_fake_mode(tensors):
        copied, captured = fake_copies.fake_copy(function)
        call = BoundCall(copied, *fake_copies.fake_inputs((inputs, kwargs)))
        names = [name for name, value in call.values.items() if _holds_tensors(value)]
        traced_call = call.as_function_of(
            names, tracer_modes.in_dispatch_mode(CaptureMode(captured))
        )
        with TorchFakes().as_tracing_mode():
            traced = proxy_tensor.make_fx(traced_call, decomposition_table)(
                *(call.values[name] for name in names)
            )
    return _with_originals(traced, function, captured)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _with_originals(traced: GraphModule, function: Any, captured: CapturedTensors) -> GraphModule:
    """Replace the fake copies in a graph by their originals, named as in the module."""
    attributes: dict[str, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value = _attribute(traced, node.target)
            original = captured.originals.get(id(value), value)
            name = captured.names.get(id(value), node.target)
            while attributes.setdefault(name, original) is not original:
                name += "_"
            node.target = name
    class_name = type(function).__name__ if isinstance(function, nn.Module) else "GraphModule"
    result = GraphModule(attributes, traced.graph, class_name)
    result.training = getattr(function, "training", True)
    return result


def _attribute(module: nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(module.get_submodule(owner), name)


def export(
    mod: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    decompose: bool | dict[Any, Callable[..., Any]] = False,
    **options: Any,
) -> torch.export.ExportedProgram:
    """``torch.export.export``, for modules without weights, on devices this machine may lack.

    Args:
        mod: the module.
        args: arguments of the call, real or fake.
        kwargs: more inputs, by name.
        dynamic_shapes: as in torch.
        strict: as in torch.
        decompose: ``True``: call ``run_decompositions()`` on the program; a dict: with this
            decomposition table. Without CUDA, calling ``run_decompositions`` later on a program on
            fake CUDA may abort the process.
        options: the other options of ``torch.export.export``.

    Returns:
        The exported program. Its parameters, buffers and constants are the module's own.

    Raises:
        TraceError: if torch cannot export `mod`, or `mod` does not run on the inputs.
        TypeError: if `mod` is not a module.

    >>> from torchfake import fake_mode
    >>> with fake_mode(fake_cuda=True):
    ...     layer = nn.Linear(4, 8, device="cuda")
    ...     x = torch.empty(2, 4, device="cuda")
    >>> program = export(layer, (x,))
    >>> program.state_dict["weight"] is layer.weight
    True
    >>> list(program.graph.nodes)[-2].meta["val"].device
    device(type='cuda', index=0)
    """
    if not isinstance(mod, nn.Module):
        raise TypeError(f"export takes a module, not {type(mod).__name__}")
    check_mapping(kwargs, "kwargs")
    check_flag(strict, "strict")
    if not isinstance(decompose, bool):
        check_mapping(decompose, "decompose")
    is_collection = hasattr(dynamic_shapes, "dynamic_shapes")  # torch.export.ShapesCollection
    if not (is_collection or isinstance(dynamic_shapes, (tuple, list))):
        check_mapping(dynamic_shapes, "dynamic_shapes")
    kept = tracer_modes.torch_modes_kept()
    with _errors("torch.export", mod), kept, without_modes():
        copies, input_copies = fake_copies.TorchFakeCopies(), fake_copies.TorchFakeCopies()
        copied = copies.of_module(mod)
        # In a non-strict export, inputs of the module's fake mode would have static sizes.
        inputs = (copies if strict else input_copies).of_tree((args, kwargs))
        has_cuda = copies.has_cuda or input_copies.has_cuda
        cuda_context = torch_fakes_without_cuda() if has_cuda else contextlib.nullcontext()
        with cuda_context, copies.fakes.as_tracing_mode():
            program = torch.export.export(
                copied, *inputs, dynamic_shapes=dynamic_shapes, strict=strict, **options
            )
            if decompose is not False:
                program = program.run_decompositions(None if decompose is True else decompose)
        if has_cuda:
            decode_graphs(program.graph_module)
        for table in (program.state_dict, program.constants):
            copies.restore_originals(table)
        program.example_inputs = (tuple(args), kwargs or {})
    return program


# Errors.

_ADVICE = {
    "symbolic_trace": "fix an argument with concrete_args, or use make_fx or export, which trace "
    "with fake tensors, so that shapes, dtypes and None are known",
    "make_fx": "remove a branch on a value, or write it with torch.where, since make_fx runs the "
    "code on fake tensors",
    "torch.export": "remove a branch on a value, or write it with torch.where or torch.cond",
}


@contextlib.contextmanager
def _errors(tracer: str, function: Any) -> Iterator[None]:
    """Context in which an error of a tracer is raised as the cause of a TraceError with advice."""
    try:
        yield
    except TraceError:
        raise
    except Exception as error:
        is_module = isinstance(function, nn.Module)
        name = type(function).__name__ if is_module else getattr(function, "__name__", "function")
        cause = f"{type(error).__name__}: {error}".rstrip(". ")
        raise TraceError(
            f"{name} cannot be traced by {tracer}: {cause}. If the inputs are valid: "
            f"{_ADVICE[tracer]}"
        ) from error


def _check_callable(function: Any) -> None:
    if not callable(function):
        raise TypeError(f"a module or a function can be traced, not a {type(function).__name__}")
