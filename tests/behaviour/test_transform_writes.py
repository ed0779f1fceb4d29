"""Writes, inside of nested transforms and dual levels in a mode, to real tensors: as in eager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.func import functionalize, grad, hessian, jvp, vjp, vmap
from torch.utils._pytree import tree_flatten

from tests.opinfo.transforms import Outcome, difference
from torchfake import deferred_mode, fake_mode
from torchfake.errors import UnsupportedOpError

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

Function = Callable[[torch.Tensor], Any]


def in_no_grad(z: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        z.mul_(3)
    return z * 2


def detached(z: torch.Tensor) -> torch.Tensor:
    z.detach()[:2].mul_(3)
    return z * 2


def data(z: torch.Tensor) -> torch.Tensor:
    z.data.view(3, 1).mul_(3)
    return z * 2


WRITES: dict[str, Function] = {"no_grad": in_no_grad, "detach": detached, "data": data}


def pushed(function: Function, x: torch.Tensor) -> Any:
    return jvp(function, (x,), (torch.ones(x.shape),))


NESTED: dict[str, Callable[[Function, torch.Tensor], Any]] = {
    "jvp_of_vjp": lambda f, x: pushed(lambda y: vjp(f, y)[1](torch.ones(3)), x),
    "jvp_of_jvp": lambda f, x: pushed(lambda y: pushed(f, y), x),
    "vjp_of_vjp": lambda f, x: vjp(lambda y: vjp(f, y)[0], x)[0],
    "vmap_of_grad": lambda f, x: vmap(grad(lambda y: f(y).sum()))(x.expand(1, 3)),
    "hessian": lambda f, x: hessian(lambda y: f(y).sum())(x),
}


def outcome(mode: Any, function: Function) -> tuple[Any, torch.Tensor]:
    """What a function of a real tensor gives, or the type of its error, and the tensor after it."""
    x = torch.tensor([0.5, -1.5, 2.0])
    with mode():
        try:
            results: Any = tree_flatten(function(x))[0]
        except RuntimeError as error:
            results = type(error)
    return results, x


def check(function: Function) -> None:
    expected, written = outcome(nullcontext, function)
    for mode in (deferred_mode, fake_mode):
        results, x = outcome(mode, function)
        assert torch.equal(x, written)
        assert x._version == written._version
        if not isinstance(expected, list):
            assert results is expected
            continue
        state = torch.get_rng_state()
        outcomes = Outcome(results, state), Outcome(expected, state)
        has_values = mode is deferred_mode
        assert difference(torch.add, *outcomes, has_values=has_values) is None


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("nested", NESTED)
def test_writes_reach_the_real_tensor(nested: str, write: str) -> None:
    check(lambda x: NESTED[nested](WRITES[write], x))


def test_writes_before_and_after() -> None:
    check(lambda x: pushed(lambda y: [vjp(torch.exp, y.mul_(2))[0], y.mul_(2), x + 0], x))
    check(lambda x: pushed(lambda y: [vjp(torch.exp, y)[0], y.mul_(2)], x))
    check(lambda x: pushed(lambda y: [pushed(lambda z: z.mul_(3), y), y + 0, x + 0], x))
    check(lambda x: pushed(lambda y: vjp(lambda z: z, y)[0], x)[0].mul_(2))


def in_dual_level(function: Function) -> Function:
    def dual(x: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones(3)))))

    return dual


def test_views_of_dual_tensors_are_written() -> None:
    check(in_dual_level(lambda d: d.mul_(2)))
    check(in_dual_level(lambda d: d[1:].mul_(2)))
    check(lambda x: pushed(lambda y: pushed(lambda z: z[0].mul_(3), y), x))


def test_views_are_differentiated() -> None:
    def pieces(z: torch.Tensor) -> torch.Tensor:
        rows = z.view(3, 1).t().unbind()[0] * z[:2].sum()
        return torch.cat([rows, z.chunk(3)[1], z.detach(), z.reshape(-1), z.expand(2, 3)[0]])

    check(lambda x: pushed(grad(lambda z: pieces(z).pow(3).sum()), x))


def test_statistics_are_written() -> None:
    def gradient(x: torch.Tensor) -> Any:
        mean, variance, rows = torch.zeros(3), torch.ones(3), x * torch.arange(1.0, 5)[:, None]

        def normed(z: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(z, mean, variance, None, None, True).pow(3).sum()

        return pushed(grad(normed), rows), mean, variance

    check(gradient)


def test_statistics_outside_of_the_mode_are_written() -> None:
    def gradient(rows: torch.Tensor, mean: torch.Tensor) -> Any:
        def normed(z: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(z, mean, mean + 1, None, None, True).pow(3).sum()

        return pushed(grad(normed), rows)

    rows, means = torch.arange(12.0).view(4, 3).sin(), (torch.zeros(3), torch.zeros(3))
    expected = tree_flatten(gradient(rows, means[0]))[0]
    with deferred_mode():
        results = tree_flatten(gradient(rows, means[1]))[0]
    assert torch.equal(*means)
    state = torch.get_rng_state()
    outcomes = Outcome(results, state), Outcome(expected, state)
    assert difference(torch.add, *outcomes, has_values=True) is None


def test_functionalize_refuses_what_it_would_not_write() -> None:
    x = torch.ones(3)
    with fake_mode(), pytest.raises(UnsupportedOpError, match=r"clone\(\)"):
        functionalize(grad(lambda z: in_no_grad(z).sum()))(x)
    assert x.sum() == 3
