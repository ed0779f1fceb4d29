"""What real tensors share besides memory: bases of views and version counters, as in eager."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchfake import deferred_init, deferred_mode, is_fake, materialize_module, materialize_tensor

SPLITS: dict[str, Callable[[Tensor], Any]] = {
    "chunk": lambda t: t.chunk(2),
    "unbind": lambda t: t.unbind(),
    "split": lambda t: t.split([1, 3]),
    "tensor_split": lambda t: t.tensor_split(3),
    "hsplit": lambda t: t.hsplit(2),
    "vsplit": lambda t: t.vsplit([1]),
    "dsplit": lambda t: t.view(2, 2, 4).dsplit(2),
    "unsafe_chunk": lambda t: t.unsafe_chunk(2),
    "view of a view": lambda t: [part[0] for part in t.chunk(2)],
    "one row": lambda t: [t[1]],
}


class Parts(nn.Module):
    """A flat parameter, views of it, and a write to one of the two."""

    def __init__(self, split: str, written: str, *, grad_mode: bool, requires_grad: bool) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(4, 4), requires_grad=requires_grad)
        with torch.set_grad_enabled(grad_mode):
            self.parts = list(SPLITS[split](self.flat))
        with torch.no_grad():
            {"flat": self.flat, "part": self.parts[0].detach()}[written].fill_(2)


def state(module: Parts) -> list[Any]:
    return [_state(module, part) for part in module.parts]


def _state(module: Parts, part: Tensor) -> Any:
    described = part.data.tolist(), part.stride(), part._base is module.flat
    try:
        return *described, part.is_leaf, part.requires_grad, "grad_fn" if part.grad_fn else ""
    except RuntimeError:
        return *described, part.requires_grad, "forbidden"


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("written", ["flat", "part"])
@pytest.mark.parametrize(("grad_mode", "requires_grad"), [(False, True), (False, False)])
def test_views_whose_base_was_written(
    split: str, written: str, grad_mode: bool, requires_grad: bool
) -> None:
    torch.manual_seed(0)
    eager = Parts(split, written, grad_mode=grad_mode, requires_grad=requires_grad)
    torch.manual_seed(0)
    module = deferred_init(Parts, split, written, grad_mode=grad_mode, requires_grad=requires_grad)
    repr(module.parts)
    materialize_module(module)
    assert not any(map(is_fake, module.parts))
    assert state(module) == state(eager)
    assert module.flat._version == eager.flat._version
    with torch.no_grad():
        module.parts[0].zero_()
        eager.parts[0].zero_()
    assert torch.equal(module.flat, eager.flat)


@pytest.mark.parametrize("split", ["chunk", "unbind", "split"])
def test_views_with_a_history_that_autograd_forbids(split: str) -> None:
    """They are still forbidden, and no longer hold the parameter's graph."""
    torch.manual_seed(0)
    eager = Parts(split, "flat", grad_mode=True, requires_grad=True)
    torch.manual_seed(0)
    module = deferred_init(Parts, split, "flat", grad_mode=True, requires_grad=True)
    materialize_module(module)
    assert state(module) == state(eager)
    for parts in (eager.parts, module.parts):
        with pytest.raises(RuntimeError, match="its base or another view of its base"):
            parts[0] * 2
    for each in (module, eager):
        each.flat.sum().backward()
    assert torch.equal(module.flat.grad, eager.flat.grad)  # type: ignore[arg-type]


def family() -> dict[str, Tensor]:
    base = torch.zeros(4)
    return {
        "base": base,
        "row": base[1:3],
        "parameter": nn.Parameter(base),
        "detached": base.detach(),
        "data": base.data,
        "of detached": base.detach()[2:],
    }


@pytest.mark.parametrize("order", [1, -1])
def test_a_write_is_counted_for_all_that_share_it(order: int) -> None:
    """So a backward pass refuses what it has saved, when another name of it was written."""
    with deferred_mode():
        made = family()
    eager = family()
    for name in list(made)[::order]:
        materialize_tensor(made[name])
    for written in eager:
        for tensors in (made, eager):
            tensors[written].data.add_(0)
            with torch.no_grad():
                tensors[written].add_(1)
        versions = [{name: t._version for name, t in ts.items()} for ts in (made, eager)]
        assert versions[0] == versions[1], written
    assert made["row"]._base is made["base"]
    product = (made["parameter"] * made["parameter"]).sum()
    made["row"].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_writes_through_an_alias_that_is_still_fake_are_counted() -> None:
    with deferred_mode():
        made = family()
    parameter = materialize_tensor(made["parameter"])
    product = (parameter * parameter).sum()
    made["row"].fill_(3)
    assert parameter.tolist() == [0, 3, 3, 0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    assert made["row"].resolve_neg() is made["row"]


def test_the_base_of_a_view_is_the_object_that_becomes_real_later() -> None:
    with deferred_mode():
        made = family()
    row = materialize_tensor(made["row"])
    assert row._is_view()
    base = materialize_tensor(made["base"])
    assert row._base is base


def test_memory_is_freed() -> None:
    """What is remembered for views and counters keeps neither memory nor records."""
    with deferred_mode():
        made = family()
    gone = [weakref.ref(made["base"]._fake_storage)]
    for tensor in made.values():
        materialize_tensor(tensor)
    gone.append(weakref.ref(made["base"].untyped_storage()))
    del made, tensor
    assert [reference() for reference in gone] == [None, None]
    gc.collect()


def test_a_gradient_of_another_shape_and_of_another_dtype() -> None:
    with deferred_mode():
        parameter = nn.Parameter(torch.ones(2, 3))
        parameter.grad = torch.full((2, 3), 2.0)
        with torch.no_grad():
            parameter.unsqueeze_(0)
    materialize_tensor(parameter)
    assert parameter.grad is not None
    assert parameter.shape == (1, 2, 3)
    assert parameter.grad.tolist() == [[2, 2, 2], [2, 2, 2]]
    layer = deferred_init(nn.Linear, 2, 2)
    with torch.no_grad():
        layer.weight.grad = torch.ones_like(layer.weight)
    materialize_module(layer, dtype=torch.bfloat16)
    assert layer.weight.dtype is layer.weight.grad.dtype is torch.bfloat16
