"""Shared by the tests of tracing: descriptions of graphs and modules, and comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # here: at a first import inside a trace, it would keep patched functions
from torch import nn
from torch.utils import _pytree as pytree

from torchfake import graph, is_deferred, is_fake

IGNORED_WARNINGS = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attributes self.lstm:UserWarning"),  # torch's
]

META, CPU = torch.device("meta"), torch.device("cpu")

PATCHED_METHODS = [
    (nn.Linear, "__init__"),
    (nn.Linear, "forward"),
    (nn.Embedding, "__init__"),
    (nn.Embedding, "forward"),
    (nn.Parameter, "__new__"),
    (nn.UninitializedParameter, "__new__"),
]


def methods() -> list[Any]:
    """The methods that MetaAwareMethodsPatcher replaces, as they are now."""
    return [vars(owner)[name] for owner, name in PATCHED_METHODS]


@pytest.fixture(autouse=True)
def no_method_stays_patched() -> Iterator[None]:
    before = methods()
    yield
    assert all(one is other for one, other in zip(methods(), before, strict=True))


def values_on(node: torch.fx.Node, *, device: bool = True) -> list[Any]:
    found = pytree.tree_leaves(node.meta.get("val"))
    return [
        (tuple(v.shape), v.dtype, v.stride(), *([v.device] if device else []))
        if isinstance(v, torch.Tensor)
        else v
        for v in found
    ]


def operators(traced: Any) -> list[Any]:
    """The operators of a graph in order, with the metadata of their results."""
    nodes = [n for n in traced.graph.nodes if n.op not in ("placeholder", "get_attr")]
    return [(n.op, str(n.target), values_on(n)) for n in nodes]


def tensors_on(traced: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves([node.meta.get("val") for node in traced.graph.nodes])
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def state_of(module: nn.Module) -> list[Any]:
    """Everything that a trace could change: values, records, versions, attributes."""
    found: list[Any] = []
    for name, submodule in module.named_modules():
        plain = {
            k: str(graph(v)) if isinstance(v, torch.Tensor) and is_fake(v) and is_deferred(v) else v
            for k, v in vars(submodule).items()
            if isinstance(v, (int, str, torch.Tensor)) and not k.startswith("_")
        }
        found.append((name, sorted(vars(submodule)), repr(plain)))
    for name, tensor in module.state_dict(keep_vars=True).items():
        if is_fake(tensor):
            value = str(graph(tensor)) if is_deferred(tensor) else repr(tensor)
        else:
            value = repr(tensor.detach().tolist())
        found.append((name, id(tensor), tensor._version, value, tensor.grad))
    return found


def flat(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def assert_same_bits(expected: Any, result: Any) -> None:
    pairs = list(zip(flat(expected), flat(result), strict=True))
    assert pairs
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def exported(program: torch.export.ExportedProgram) -> list[Any]:
    """The nodes of a program, inputs included, by name, with the metadata of their results."""
    nodes = [(n.name, n.op, str(n.target), values_on(n)) for n in program.graph.nodes]
    return [*nodes, str(program.graph_signature), str(program.range_constraints)]
