"""Trees of operands and results of operators that take functions, and transforms of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import map, scan, while_loop
from torch.utils import _pytree as pytree

from torchfake import deferred_mode, fake_mode, materialize_tensor
from torchfake.errors import UnsupportedOpError


def rows() -> torch.Tensor:
    return torch.arange(6.0).view(3, 2) - 2


def zeros() -> torch.Tensor:
    return torch.zeros(2)


def by_sum(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def by_true(x: torch.Tensor) -> Any:
    return torch.cond(torch.tensor(True), lambda x: (x + 1,), lambda x: (x - 1,), (x,))


PROGRAMS: dict[str, Callable[[], Any]] = {
    "scan, dict": lambda: scan(
        lambda c, y: ({"a": c["a"] + y}, c["a"] * y), {"a": zeros()}, rows()
    ),
    "scan, tuple": lambda: scan(lambda c, y: ((c[0] + y,), c[0] * y), (zeros(),), rows()),
    "scan, outputs": lambda: scan(
        lambda c, y: (c + y, {"o": [c * y], "p": c - y}), zeros(), rows()
    ),
    "scan, two": lambda: scan(
        lambda c, y: ((c[0] + y, c[1] * y), [c[0] * y]), (zeros(), zeros() + 1), rows()
    ),
    "cond, dict": lambda: torch.cond(
        torch.tensor(True), lambda d: d["a"] + 1, lambda d: d["a"] - 1, ({"a": rows()},)
    ),
    "cond, list": lambda: torch.cond(
        torch.tensor(False),
        lambda d, e: [d[0] + e],
        lambda d, e: [d[0] - e],
        [[rows(), rows()], rows()],
    ),
    "while, tensor": lambda: while_loop(lambda i: i < 3, lambda i: i + 1, (torch.tensor(0),)),
    "while, never": lambda: while_loop(lambda i: i < 0, lambda i: i + 1, (torch.tensor(0),)),
    "while, list": lambda: while_loop(
        lambda i, x: i < 3, lambda i, x: [i + 1, x + 1], [torch.tensor(0), rows()]
    ),
    "while, dict": lambda: while_loop(
        lambda d: d["i"] < 3,
        lambda d: ({"i": d["i"] + 1, "x": d["x"] * 2},),
        ({"i": torch.tensor(0), "x": rows()},),
    ),
    "vmap, of cond": lambda: torch.vmap(by_sum)(rows()),
    "vmap, one predicate": lambda: torch.vmap(by_true)(rows()),
    "vmap, dims": lambda: torch.vmap(by_sum, in_dims=1, out_dims=1)(rows()),
    "vmap, twice": lambda: torch.vmap(torch.vmap(by_sum))(rows()),
}


def shape_and_structure(tree: Any) -> Any:
    leaves, spec = pytree.tree_flatten(tree)
    return [(leaf.shape, leaf.dtype) for leaf in leaves], spec


@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name: str) -> None:
    program = PROGRAMS[name]
    real = program()
    with fake_mode():
        fake = program()
    assert shape_and_structure(fake) == shape_and_structure(real)
    values = pytree.tree_leaves(real)
    if not name.startswith("scan"):  # whose outputs are written into unknown memory
        assert [t.tolist() for t in pytree.tree_leaves(fake)] == [t.tolist() for t in values]
    with deferred_mode():
        deferred = program()
    assert shape_and_structure(deferred) == shape_and_structure(real)
    for mine, eager in zip(pytree.tree_leaves(deferred), values, strict=True):
        assert torch.equal(materialize_tensor(mine), eager)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # torch's, of its first jvp
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_transforms_without_a_rule_are_refused(mode: Any) -> None:
    with mode():
        x = rows()
        with pytest.raises(UnsupportedOpError, match=r"map_impl has no rule for .* Vmap"):
            torch.vmap(lambda x: map(lambda y: y + 1, x))(x)
        with pytest.raises(UnsupportedOpError, match=r"cond has no rule for .* Grad"):
            torch.func.grad(lambda x: by_sum(x).sum())(x)
        with pytest.raises(UnsupportedOpError, match=r"cond has no rule for .* Jvp"):
            torch.func.jvp(by_sum, (x,), (x,))


def test_scan_without_an_output_is_refused() -> None:
    with fake_mode(), pytest.raises(RuntimeError, match="a carry and an output"):
        scan(lambda c, y: c + y, zeros(), rows())


def test_real_tensors_are_treated_as_before() -> None:
    with pytest.raises(AssertionError, match="can only be of"):
        torch.ops.higher_order.cond(torch.tensor(True), len, len, ({"a": rows()},))
    with pytest.raises(KeyError):
        torch.vmap(lambda x: torch.ops.higher_order.map_impl(torch.sin, [x], []))(rows())
