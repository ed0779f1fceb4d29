"""One walk over a module: what is collected, and how often a module is asked."""

from __future__ import annotations

import torch
from torch import nn

from torchfake import deferred_init, materialize_module
from torchfake._materialize.collect import collect


class Table(nn.Module):
    """A parameter that is tied, a buffer, and deferred tensors in plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.second = nn.Linear(2, 3)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(3))
        self.positions = [torch.arange(4.0), {"more": torch.zeros(2)}]


def test_each_tensor_once_under_its_first_name() -> None:
    module = deferred_init(Table)
    selection = collect(module)
    names = [name for name, _ in selection.tensors]
    assert names == ["scale", "first.weight", "first.bias", "second.bias"]
    assert all(tensor is not module.second.weight for _, tensor in selection.tensors[2:])
    assert [attribute.name for attribute in selection.attributes] == ["positions", "positions"]
    assert all(attribute.owner is module for attribute in selection.attributes)


def test_a_choice_of_submodules() -> None:
    module = deferred_init(Table)
    chosen = collect(module, check=lambda submodule: submodule is module.second)
    assert [name for name, _ in chosen.tensors] == ["second.weight", "second.bias"]
    assert not chosen.attributes
    buffers = collect(module, buffers_only=True)
    assert [name for name, _ in buffers.tensors] == ["scale"]
    assert not buffers.attributes


def test_a_module_is_asked_once() -> None:
    """``check_fn`` of each submodule, its parameters and its buffers, each a single time."""
    asked: list[str] = []

    class Counted(nn.Linear):
        def named_parameters(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            asked.append("parameters")
            return super().named_parameters(*args, **kwargs)

        def named_buffers(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            asked.append("buffers")
            return super().named_buffers(*args, **kwargs)

    def check_fn(module: nn.Module) -> bool:
        asked.append("check_fn")
        return True

    module = deferred_init(Counted, 2, 3)
    materialize_module(module, check_fn=check_fn, dtype=torch.float64)
    assert sorted(asked) == ["buffers", "check_fn", "parameters"]
    assert module.weight.dtype == torch.float64


def test_nothing_changes_while_collecting() -> None:
    module = deferred_init(nn.utils.parametrizations.weight_norm, nn.Linear(2, 3))
    before = dict(module.named_parameters())
    collect(module)
    assert dict(module.named_parameters()).keys() == before.keys()
    assert all(a is b for a, b in zip(module.parameters(), before.values(), strict=True))
