"""A step of the user's own counts each byte once, whatever class holds it and refers to it."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.quantized_tensor import Packed, quantized_net
from torchfake import estimate, fake_mode
from torchfake._tensor.copies import held_tensors
from torchfake._torch import subclass
from torchfake.distributed.ranks.fake_process_group import simulated_rank


def packed_net() -> nn.Module:
    """A parameter whose scales are in an object, as bitsandbytes' ``Params4bit``."""
    layer = PackedLinear(8, 8)
    layer.weight = Packed(layer.weight.detach())
    return nn.Sequential(layer)


class PackedLinear(nn.Linear):
    def forward(self, x: Any) -> Any:
        weight: Any = self.weight
        return nn.functional.linear(x, weight.to(x.dtype) * weight.state.scales[0], self.bias)


class Jagged(nn.Module):
    """A nested tensor as a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        rows = [torch.ones(2, 8), torch.ones(5, 8)]
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        self.table = nn.Parameter(nested, requires_grad=False)

    def forward(self, x: Any) -> Any:
        return x + (self.table * 2).values().sum()


def sharded_net() -> nn.Module:
    """A DTensor, on one rank."""
    mesh = init_device_mesh("cpu", (1,))
    net = nn.Sequential(nn.Linear(8, 8, bias=False))
    weight = distribute_tensor(net[0].weight.detach(), mesh, [Shard(0)])  # type: ignore[arg-type]
    net[0].weight = nn.Parameter(weight, requires_grad=False)
    return net


NETS: dict[str, Callable[[], nn.Module]] = {
    "two inner tensors": quantized_net,
    "nested wrappers": partial(quantized_net, nested=True),
    "attribute of a parameter": packed_net,
    "nested tensor": Jagged,
}
NAMES = tuple(NETS)


def _shown(parameter: str, self: Any, original: Any = None) -> str:
    return f"{original()}, {parameter}"


def with_references_to_itself(net: nn.Module) -> nn.Module:
    """The net with methods whose functions refer to it too, as torchao sets ``extra_repr``."""
    for part in net.modules():
        function: Any = partial(_shown, "weight", original=part.extra_repr)
        part.extra_repr = types.MethodType(function, part)
        part.described = types.MethodType(lambda self, part=part: (self, part), part)
    return net


def bytes_of(net: nn.Module) -> int:
    leaves = [leaf for p in net.parameters() for leaf in held_tensors(p)]
    storages = [leaf.untyped_storage() for leaf in leaves]
    return sum({subclass.storage_key(s): s.nbytes() for s in storages}.values())


def assert_counted_once(net: nn.Module) -> None:
    x, head = torch.empty(3, 8), nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(head.parameters())

    def infer() -> Any:
        with torch.no_grad():
            return net(x)

    def train(model: Any, given: Any) -> None:
        model(head(given)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = estimate(infer).peak.by_category
    assert found == estimate(net, x, mode="inference").peak.by_category
    assert (found["parameters"], found["inputs"]) == (bytes_of(net), x.nbytes)
    trained = estimate(train, net, x)
    held = trained.peak.by_category
    assert held["parameters"] == bytes_of(net) + bytes_of(head)
    assert held["optimizer state"] == 2 * bytes_of(head) + 2 * 4  # a count for each
    assert held["inputs"] == x.nbytes
    assert sum(held.values()) == trained.peak_bytes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("refers", [False, True], ids=["plain", "refers to itself"])
def test_wrappers_of_fakes_count_once(name: str, refers: bool) -> None:
    with fake_mode():
        net = NETS[name]()
        assert_counted_once(with_references_to_itself(net) if refers else net)


@pytest.mark.parametrize("refers", [False, True], ids=["plain", "refers to itself"])
def test_shards_count_once(refers: bool) -> None:
    with simulated_rank(0, 1), fake_mode():
        net = sharded_net()
        net = with_references_to_itself(net) if refers else net
        counted = estimate(lambda: next(net.parameters()).detach() * 2).peak.by_category
        assert counted["parameters"] == bytes_of(net)
        assert "inputs" not in counted


def test_the_function_of_a_method_refers_to_the_copy() -> None:
    with fake_mode():
        net = with_references_to_itself(nn.Sequential(nn.Linear(2, 2)))
        seen = []

        def step() -> Any:
            seen.append((net, net.described(), net[0].described()))  # type: ignore[operator,index]
            return net[0].weight * 2  # type: ignore[index,operator]

        given: Any = estimate(step).subject.program
        assert given[0] is step
        assert len(seen) == 0  # the list is the copy's own
        calls: list[Any] = []
        estimate(lambda: calls.append(0) or _assert_own(net, net))
    assert net.described()[0] is net.described()[1] is net  # type: ignore[operator]


def _assert_own(net: Any, again: Any) -> Any:
    assert net is again
    assert net.described()[0] is net.described()[1] is net
    assert net[0].described()[0] is net[0].described()[1] is net[0]
    return net[0].weight * 2
