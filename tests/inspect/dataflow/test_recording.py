"""Who takes from whom, against an oracle of its own: a module has an edge to another if that sees
NaN where the first gives NaN, and all others give numbers that depend on nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchfake import graph_of
from torchfake.errors import InputsError

Step = Callable[["Program", list[Tensor]], Tensor]


def _in_slices(_model: Program, v: list[Tensor]) -> Tensor:
    v[1] = v[1].clone()
    v[1][:, 1:3] = v[0][:, 1:3]
    return v[1].t().contiguous().t()


def _through_alias(_model: Program, v: list[Tensor]) -> Tensor:
    v[1] = v[1] * 1
    flat = v[1].view(-1)
    v[1].data.add_(v[0])
    return flat.view(4, 4)


STEPS: dict[str, Step] = {
    "module": lambda model, v: model.a(v[0]),
    "module with two inputs": lambda model, v: model.both(v[0], y=v[1]),
    "module that writes its input": lambda model, v: model.relu(v[1] * 1),
    "the same module again": lambda model, v: model.a(v[1]),
    "sum": lambda _, v: v[0] + v[1],
    "slices": _in_slices,
    "alias": _through_alias,
    "out=": lambda _, v: torch.add(v[0], v[1], out=torch.empty(4, 4)),
    "foreach": lambda _, v: torch._foreach_add([v[0]], [v[1]])[0],
    "index_copy_": lambda _, v: v[1].clone().index_copy_(0, torch.tensor([1]), v[0][:1]),
    "chunks": lambda _, v: torch.cat(v[0].chunk(2)[::-1]),
    "constant": lambda _, v: torch.ones(4, 4),
    "state": lambda model, v: setattr(model, "state", v[0]) or model.state * 2,
}
CHAINS = [
    ["module", "slices", "module with two inputs"],
    ["module", "alias", "the same module again", "sum"],
    ["module", "module that writes its input", "out=", "the same module again"],
    ["state", "module", "index_copy_", "module with two inputs", "foreach"],
    ["module", "chunks", "module with two inputs", "constant", "module", "sum"],
]


class Both(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


class Program(nn.Module):
    """A straight line: each step takes the last two values, and makes the next."""

    state: Tensor

    def __init__(self, steps: list[str]) -> None:
        super().__init__()
        self.a, self.both, self.relu = nn.Linear(4, 4), Both(), nn.ReLU(inplace=True)
        self.steps = [STEPS[name] for name in steps]

    def forward(self, x: Tensor) -> Tensor:
        v = [x, x * 1]
        for step in self.steps:
            made = step(self, v)
            v = [made, v[0]]
        return v[0] + 0


def _edges_of_poison(model: Program) -> set[tuple[int, int]]:
    """Edges between calls by number; -1 is the input."""
    found: set[tuple[int, int]] = set()
    num_calls = 1
    source = -1
    while source < num_calls:
        seen: list[bool] = []

        def before(_module: Any, args: Any, kwargs: Any, seen: list[bool] = seen) -> None:
            seen.append(any(t.isnan().any() for t in (*args, *kwargs.values())))

        def after(
            module: Any, args: Any, output: Any, source: int = source, seen: list[bool] = seen
        ) -> Any:
            return output.fill_(torch.nan if len(seen) - 1 == source else 0.5)

        handles = [c.register_forward_pre_hook(before, with_kwargs=True) for c in model.children()]
        handles += [child.register_forward_hook(after) for child in model.children()]
        with torch.no_grad():
            model(torch.full((4, 4), torch.nan if source == -1 else 0.5))
        for handle in handles:
            handle.remove()
        found |= {(source, number) for number, is_poisoned in enumerate(seen) if is_poisoned}
        num_calls = len(seen)
        source += 1
    return found


@pytest.mark.parametrize("steps", CHAINS, ids=lambda steps: ", ".join(steps))
def test_edges_are_what_flows(steps: list[str]) -> None:
    model = Program(steps)
    graph = graph_of(model, torch.ones(4, 4), depth=9, functions="none", fold=False)
    modules = [node.number for node in graph.nodes if node.kind == "module"]
    numbers = {number: call for call, number in enumerate(modules)} | {0: -1}
    found = {(numbers.get(e.source), numbers.get(e.target)) for e in graph.edges}
    assert {edge for edge in found if None not in edge} == _edges_of_poison(model)


def _named_edges(model: nn.Module, *inputs: Any) -> set[tuple[str, str]]:
    graph = graph_of(model, *inputs)
    return {(graph.nodes[e.source].name, graph.nodes[e.target].name) for e in graph.edges}


class Inputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([self.a(x), self.b(y)])


def test_inputs_that_are_views_of_each_other_are_two() -> None:
    batch = torch.ones(4, 4)
    edges = _named_edges(Inputs(), batch[:2], batch[2:])
    assert {("x", "a"), ("y", "b")} <= edges
    assert not {("x", "b"), ("y", "a")} & edges


def test_a_tensor_that_is_two_inputs_is_one_box_with_both_names() -> None:
    x = torch.ones(2, 4)
    assert {("x, y", "a"), ("x, y", "b")} <= _named_edges(Inputs(), x, x)


def test_a_model_that_returns_its_input() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    assert _named_edges(Same(), torch.ones(2)) == {("x", "output")}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_torchscript_is_refused_by_name() -> None:
    model = nn.Sequential(torch.jit.script(nn.ReLU()))
    with pytest.raises(InputsError, match="0 is TorchScript"):
        graph_of(model, torch.ones(2))


def test_inputs_of_a_decorated_forward_have_its_names() -> None:
    """Those of ``inspect.signature``, and not those of the wrapper."""

    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            return function(self, *args, **kwargs)

        return wrapper

    class Decorated(nn.Module):
        @decorated
        def forward(self, sample: Tensor, *more: Tensor, flag: bool = True) -> Tensor:
            return sample + more[0]

    x = torch.ones(2, 3)
    graph = graph_of(Decorated(), x, torch.ones(2, 3))
    assert [node.name for node in graph.nodes[:2]] == ["sample", "input 1"]
