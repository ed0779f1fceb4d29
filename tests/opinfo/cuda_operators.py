"""Runs a program on CUDA twice, on torch's own fakes and on ours, and tells where they differ.

Input: a function and its arguments, real tensors on the CPU. Output: what each saw: the operators
in their order, the metadata of the results, the nodes of the graph with the tensors that they have
saved. torch's own FakeTensorMode runs on CUDA without a GPU if torch is built with CUDA, forward;
its wrappers are on CUDA for C++, so composites take CUDA's way. What C++ asks the GPU itself, it
cannot tell: see ``UNTOLD``.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torchfake

ATTENTION = "the kernel is chosen by the GPU's capability; without one, torch takes the math path"
CUBLAS = "strides of a dim of one element, which no kernel reads"
NUMBERS = "in a mode, torch.tensor(number) is converted to another dtype by an operator of its own"
INDICES = "the index that is made of a list is on the CPU here, with its value"
SPANNED = "the fake made of a sample has no memory beyond what it spans; torch's own grow"

UNTOLD = {
    "nn.functional.scaled_dot_product_attention": ATTENTION,
    "nn.functional.multi_head_attention_forward": ATTENTION,
    "nn.MultiheadAttention": ATTENTION,
    "nn.Transformer": ATTENTION,
    "nn.TransformerEncoder": ATTENTION,
    "nn.TransformerEncoderLayer": ATTENTION,
    "nn.TransformerDecoderLayer": ATTENTION,
    "einsum": CUBLAS,
    "linalg.pinv.singular": CUBLAS,
    "__getitem__": INDICES,
    "as_strided.partial_views": SPANNED,
    "signal.windows.blackman": NUMBERS,
    "signal.windows.general_cosine": NUMBERS,
    "signal.windows.general_hamming": NUMBERS,
    "signal.windows.hamming": NUMBERS,
    "signal.windows.hann": NUMBERS,
    "signal.windows.kaiser": NUMBERS,
    "signal.windows.nuttall": NUMBERS,
}
"""What differs, or may, and why."""


class Operators(TorchDispatchMode):
    """The names of the operators that reach Python, but for those that ask for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") == "aten":
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Seen(NamedTuple):
    """What a program did on fakes."""

    operators: list[str]
    results: list[Any]
    nodes: list[Any]
    error: str | None = None


def described(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device)


def nodes_of(results: list[torch.Tensor]) -> list[Any]:
    """The nodes of a graph, breadth first, each with the tensors that it has saved."""
    found, todo = [], [t.grad_fn for t in results]
    seen: set[Any] = {None}
    while todo:
        node = todo.pop(0)
        if node not in seen:
            seen.add(node)
            found.append((node.name(), _saved_by(node)))
            todo += [each for each, _ in node.next_functions]
    return found


def _saved_by(node: Any) -> list[Any]:
    names = [name for name in dir(node) if name.startswith("_saved_")]
    values = [(name, leaf) for name in names for leaf in tree_leaves(getattr(node, name))]
    return [(name, described(v)) for name, v in values if isinstance(v, torch.Tensor)]


def on_cuda(value: Any) -> Any:
    """A fake on CUDA with the metadata of a tensor, in whichever mode is on."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    made = made.conj() if value.is_conj() else made
    return made.requires_grad_() if value.requires_grad else made


def run_in(mode: Any, program: Callable[..., Any], args: Any) -> Seen:
    """What `program` did in a mode. A program is given what sees its operators, too."""
    try:
        with mode:
            moved = tree_map(on_cuda, args)
            with Operators() as seen:
                result = program(seen, *moved)
            tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            results = [described(t) for t in tensors]
            return Seen(seen.names, results, nodes_of(tensors))
    except Exception as error:  # torch's own modes raise many types
        return Seen([], [], [], f"{type(error).__name__}: {error}")


def compare(program: Callable[..., Any], args: Any) -> tuple[str, str]:
    """How a program compares: ``same``, ``untold`` where torch's own fakes cannot run it, or
    ``different``, and then what differs.
    """
    expected = run_in(FakeTensorMode(allow_non_fake_inputs=True), program, args)
    if expected.error is not None:
        return "untold", expected.error
    found = run_in(torchfake.fake_mode(fake_cuda=True), program, args)
    if found.error is not None:
        return "different", found.error
    for one, other in zip(expected[:3], found[:3], strict=True):
        if one != other:
            return "different", _first_difference(one, other)
    return "same", ""


def _first_difference(expected: list[Any], found: list[Any]) -> str:
    for one, other in zip(expected, found, strict=False):
        if one != other:
            return f"{one} in torch's own, {other} here"
    return f"{expected[len(found) :]} more in torch's own, {found[len(expected) :]} more here"


class Case(NamedTuple):
    name: str
    dtype: torch.dtype
    program: Callable[..., Any]
    args: Any


def operator_cases(
    dtypes: list[torch.dtype], step: int, num_samples: int, name: str = ""
) -> Iterator[Case]:
    """Samples of torch's operator database: of each `step`-th operator, or one, the first few."""
    for op in op_db[::step]:
        if name not in ("", _name(op)):
            continue
        for dtype in dtypes:
            if dtype not in op.dtypes or "triton" in op.name:
                continue
            grad = op.supports_autograd and dtype.is_floating_point
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
            for sample in samples[:: max(1, len(samples) // num_samples)][:num_samples]:
                args = sample.input, sample.args, sample.kwargs
                yield Case(_name(op), dtype, _call(op), args)


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def _call(op: Any) -> Callable[..., Any]:
    if op.name == "__getitem__":  # the database has the method, which no class can intercept
        return lambda _, first, args, kwargs: operator.getitem(first, *args)
    return lambda _, first, args, kwargs: op.op(first, *args, **kwargs)


def module_cases(dtypes: list[torch.dtype], step: int, num_samples: int) -> Iterator[Case]:
    """The same of torch's list of modules, in training."""
    for module in module_db[::step]:
        for dtype in dtypes:
            make: Any = module.module_inputs_func
            inputs = make(module, device="cpu", dtype=dtype, requires_grad=True, training=True)
            for each in [i for i in inputs if i.forward_input is not None][:num_samples]:
                forward = each.forward_input
                program = _construct_and_call(module.module_cls, each.constructor_input, dtype)
                yield Case(module.name, dtype, program, (forward.args, forward.kwargs))


def _construct_and_call(cls: Any, given: Any, dtype: torch.dtype) -> Callable[..., Any]:
    def program(operators: Operators, args: Any, kwargs: Any) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device("cuda"):
                module = cls(*tree_map(on_cuda, given.args), **tree_map(on_cuda, given.kwargs))
        finally:
            torch.set_default_dtype(before)
        operators.names.clear()
        return module(*args, **kwargs)

    return program


def compare_all(cases: Iterator[Case]) -> tuple[collections.Counter[str], list[str]]:
    """How many cases are the same, untold and different; a line for each that differs and is not
    listed.
    """
    counts: collections.Counter[str] = collections.Counter()
    lines = []
    for case in cases:
        outcome, text = compare(case.program, case.args)
        if outcome == "different" and case.name in UNTOLD:
            outcome = "listed"
        counts[outcome] += 1
        if outcome == "different":
            lines.append(f"{case.name} {case.dtype}: {text[:300]}")
    return counts, lines
