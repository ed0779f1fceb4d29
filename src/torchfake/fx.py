"""Tracing: graphs of modules that are fake, deferred, on ``meta`` or real, and none is changed.

Enters: the user, with a module and inputs. Leaves: torch's own graph modules and exported programs,
which hold the module's own tensors. Invariant: the module is afterwards what it was; what is run is
a twin of it.
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

from torchfake import _fx_twins
from torchfake._fx_cuda import decode_graphs, fake_cuda_in_torch
from torchfake._fx_patcher import MetaAwareMethodsPatcher as MetaAwareMethodsPatcher
from torchfake._fx_proxies import Foreign, ForeignTensors
from torchfake._fx_values import TorchFakes, in_order, propagate
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
        inputs: what to call it with to learn the shapes, real or fake; without any, nodes have
            none. Values are never looked at.
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
    with _errors("symbolic_trace", root):
        tensors = _fx_twins.tensors_in(root, inputs, kwargs)
        with _fx_twins.making_constants(tensors):
            traced = _symbolic(root, concrete_args)
        if inputs or kwargs:
            given = _fx_twins.signature_of(root).bind_partial(*inputs, **kwargs).arguments
            arguments = {**(concrete_args or {}), **given}
            values = in_order(traced, _fx_twins.fakes_of(arguments))
            twin, _ = _fx_twins.fake_twin(traced)
            with _fx_twins.faking(tensors):
                propagate(traced, twin, values)
    return traced


def _symbolic(root: Any, concrete_args: dict[str, Any] | None) -> GraphModule:
    """A twin's graph, with the module's own layers in it."""
    if not isinstance(root, nn.Module):
        with _fx_twins.proxies_decide():
            return torch.fx.symbolic_trace(root, concrete_args)
    tracer, twin = torch.fx.Tracer(), _fx_twins.symbolic_twin(root)
    with _fx_twins.proxies_decide():
        graph = tracer.trace(twin, concrete_args)
    holder = nn.Module()  # what the graph names is the module's, but for constants it made
    made = {name: v for name, v in vars(tracer.root).items() if name not in vars(root)}
    vars(holder).update({**made, **vars(root)})
    return GraphModule(holder, graph, type(root).__name__)


def make_fx(
    function: nn.Module | Callable[..., Any],
    *inputs: Any,
    decomposition_table: dict[Any, Callable[..., Any]] | None = None,
    **kwargs: Any,
) -> GraphModule:
    """``torch.fx.experimental.proxy_tensor.make_fx``: the graph of the ATen operators that run.

    Args:
        function: a module, a method of one, or a function. Tensors that a function refers to, of
            modules too, become attributes of the graph.
        inputs: what to call it with, real or fake. Arguments that hold tensors are the graph's
            inputs, in the order in which `function` names them; their values are unknown. All
            others are fixed.
        decomposition_table: as in torch.
        kwargs: more inputs, by name.

    Returns:
        The graph module. Its parameters and buffers are those of `function`, by their names.

    Raises:
        TraceError: if it does not run on the inputs, or asks for a value that is not known.
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
    tensors = _fx_twins.tensors_in(function, inputs, kwargs)
    with _errors("make_fx", function), _fx_twins.faking(tensors):
        twin, foreign = _fx_twins.fake_twin(function)
        call = _fx_twins.Call(twin, *_fx_twins.fakes_of((inputs, kwargs)))
        names = [name for name, value in call.values.items() if _holds_tensors(value)]
        traced_call = call.function_of(names, ForeignTensors(foreign))
        with TorchFakes().for_values():
            traced = proxy_tensor.make_fx(traced_call, decomposition_table)(
                *(call.values[name] for name in names)
            )
    return _rerooted(traced, function, foreign)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _rerooted(traced: GraphModule, function: Any, foreign: Foreign) -> GraphModule:
    """The same graph, with originals for twins, under the names they have in the module."""
    root: dict[str, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            held = _attribute(traced, node.target)
            original = foreign.originals.get(id(held), held)
            name = foreign.names.get(id(held), node.target)
            while root.setdefault(name, original) is not original:
                name += "_"
            node.target = name
    class_name = type(function).__name__ if isinstance(function, nn.Module) else "GraphModule"
    made = GraphModule(root, traced.graph, class_name)
    made.training = getattr(function, "training", True)
    return made


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
    """``torch.export.export``, for modules without weights and devices that are not there.

    Args:
        mod: the module.
        args: what to call it with, real or fake.
        kwargs: more of that, by name.
        dynamic_shapes: as in torch.
        strict: as in torch.
        decompose: whether to call ``run_decompositions()`` on the program, or what with. Without
            CUDA, the process may abort where that is done later with a program on fake CUDA.
        options: torch's other ones.

    Returns:
        The exported program. Its parameters, buffers and constants are the module's own.

    Raises:
        TraceError: if torch cannot export it, or it does not run on the inputs.
        TypeError: if `mod` is no module.

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
    with _errors("torch.export", mod), _fx_twins.outside_modes():
        twins, of_inputs = _fx_twins.TorchTwins(), _fx_twins.TorchTwins()
        twin = twins.of_module(mod)
        # Inputs of the module's mode would be taken to have the sizes that they have.
        inputs = (twins if strict else of_inputs).of_tree((args, kwargs))
        has_cuda = twins.has_cuda or of_inputs.has_cuda
        cuda = fake_cuda_in_torch() if has_cuda else contextlib.nullcontext()
        with cuda, twins.fakes.for_values():
            program = torch.export.export(
                twin, *inputs, dynamic_shapes=dynamic_shapes, strict=strict, **options
            )
            if decompose is not False:
                program = program.run_decompositions(None if decompose is True else decompose)
        if has_cuda:
            decode_graphs(program.graph_module)
        for table in (program.state_dict, program.constants):
            twins.give_back(table)
        program.example_inputs = (tuple(args), kwargs or {})
    return program


# Errors.

_OTHERS = {
    "symbolic_trace": "make_fx and export trace with fake tensors, so shapes, dtypes and None are "
    "known there; here, fix an argument with concrete_args",
    "make_fx": "it runs the code on fake tensors: a branch on a value has to be taken out, or "
    "written with torch.where",
    "torch.export": "a branch on a value has to be taken out, or written with torch.where or "
    "torch.cond",
}


@contextlib.contextmanager
def _errors(tracer: str, function: Any) -> Iterator[None]:
    """Context: what a tracer raises is the cause of a TraceError."""
    try:
        yield
    except TraceError:
        raise
    except Exception as error:
        is_module = isinstance(function, nn.Module)
        name = type(function).__name__ if is_module else getattr(function, "__name__", "function")
        said = f"{type(error).__name__}: {error}".rstrip(". ")
        raise TraceError(
            f"{name} cannot be traced by {tracer}: {said}. If that is not an error of the inputs: "
            f"{_OTHERS[tracer]}"
        ) from error


def _check_callable(function: Any) -> None:
    if not callable(function):
        raise TypeError(f"a module or a function can be traced, not a {type(function).__name__}")
