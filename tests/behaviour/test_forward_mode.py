"""Forward-mode AD, nested transforms and zero tensors: eager's values and metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils._pytree import tree_flatten

from tests.opinfo.transforms import Outcome, difference
from torchfake import deferred_mode, fake_mode

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),
]


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grad

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * tangent


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2))


def dual(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[Any]:
    """Primals and tangents of a function of random tensors."""
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(torch.randn(s), torch.randn(s)) for s in shapes]
        return [forward_ad.unpack_dual(r) for r in tree_flatten(function(*duals))[0]]


def dual_parameters() -> list[Any]:
    model = network()
    with forward_ad.dual_level():
        duals = {
            name: forward_ad.make_dual(p, torch.randn_like(p))
            for name, p in model.named_parameters()
        }
        return list(forward_ad.unpack_dual(functional_call(model, duals, torch.randn(5, 3))))


def dual_written(d: torch.Tensor) -> list[torch.Tensor]:
    rows = torch.randn(2, 3)
    rows[1].copy_(d)
    column = rows[:, 0]
    column.mul_(2)
    return [rows, column, torch.randn(3).mul_(d)]


def gradient_of_dual() -> list[Any]:
    x = torch.randn(3).requires_grad_()
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x, torch.randn(3))
        (gradient,) = torch.autograd.grad((d.sin() * d).sum(), d)
        return list(forward_ad.unpack_dual(gradient))


def zeros() -> list[Any]:
    zero, x = torch._efficientzerotensor((3,)), torch.randn(3)
    infinite = torch.full((3,), torch.inf)
    return [
        zero, zero + 1, zero * 2.0, zero * infinite, torch.dot(zero, infinite), x / 2 + zero,
        zero.view(1, 3), zero[1], zero.clone(), zero.sum(), torch.cat([zero, x]), x.add_(zero),
        zero.expand(2, 3) * 2, torch.zeros_like(zero), zero.detach().reshape(3, 1),
    ]  # fmt: skip


def bits() -> list[Any]:
    z = torch.randn(3, dtype=torch.complex64)
    return [z.conj(), z.conj() * z, z.conj().imag, torch._neg_view(z.real), z.conj().resolve_conj()]


def per_sample() -> Any:
    model = network()
    parameters = dict(model.named_parameters())

    def loss(p: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, p, (x,)).sum()

    x = torch.randn(5, 3)
    return vmap(grad(loss), (None, 0))(parameters, x), jacfwd(loss)(parameters, x[0])


def jvp_of_real(x: torch.Tensor) -> Any:
    def gradient(y: torch.Tensor) -> torch.Tensor:
        return vjp(lambda z: z.exp().sum(), y)[1](torch.ones(()))[0]

    return jvp(gradient, (x,), (x,)), hessian(lambda y: (y.sin() * y).sum())(x)


def linearized() -> Any:
    scale = torch.randn(3)
    output, push = linearize(lambda x: x.sin() * scale * x, torch.randn(3))
    return output, push(torch.randn(3)), push(torch.ones(3))


def noise(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x) + torch.randn(3)


REAL = torch.tensor([0.5, -1.5, 2.0])
CASES: dict[str, Callable[[], Any]] = {
    "numbers": lambda: dual(
        lambda d: [d * 2.0, 2 / d, d + 1, d**3, torch.where(d > 0, d, 0.0)], (3,)
    ),
    "written": lambda: dual(dual_written, (3,)),
    "without_tangent": lambda: dual(
        lambda d: [d.round(), d * 0, torch.cat([d, torch.randn(2)]), torch.stack([d, REAL])], (3,)
    ),
    "norms": lambda: dual(
        lambda d: [
            F.layer_norm(d, (3,)), F.group_norm(d, 2), F.instance_norm(d), d.prod(), d.prod(1)
        ],
        (5, 4, 3),
    ),
    "parameters": dual_parameters,
    "gradient": gradient_of_dual,
    "custom": lambda: dual(Cube.apply, (3,)),
    "custom_transformed": lambda: [
        jvp(Cube.apply, (torch.randn(3),), (torch.randn(3),)), vmap(grad(Cube.apply))(REAL.clone()),
        hessian(lambda x: Cube.apply(x).sum())(torch.randn(3)), jacrev(Cube.apply)(torch.randn(3)),
    ],
    "zeros": zeros,
    "bits": bits,
    "per_sample": per_sample,
    "hessian": lambda: hessian(lambda x: x.exp().prod() + x.sum())(torch.randn(3)),
    "jvp_of_real": lambda: jvp_of_real(REAL),
    "jvp_of_own": lambda: jvp_of_real(torch.randn(3)),
    "linearized": linearized,
    "random": lambda: [vmap(noise, randomness=r)(torch.randn(4, 3)) for r in ("different", "same")],
    "jacobian": lambda: torch.autograd.functional.jacobian(
        torch.sin, torch.randn(3), vectorize=True, strategy="forward-mode"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str) -> None:
    torch.manual_seed(0)
    expected = Outcome(tree_flatten(CASES[name]())[0], torch.get_rng_state())
    torch.manual_seed(0)
    with deferred_mode():
        results, _ = tree_flatten(CASES[name]())
    deferred = Outcome(results, torch.get_rng_state())
    assert difference(torch.add, deferred, expected, has_values=True) is None
    with fake_mode():
        fake = Outcome(tree_flatten(CASES[name]())[0], expected.state)
    assert difference(torch.add, fake, expected, has_values=False) is None


def test_zero_tensors_are_immutable() -> None:
    with deferred_mode():
        zero = torch._efficientzerotensor((3,))
        with pytest.raises(RuntimeError, match="immutable"):
            zero.add_(1)
        assert zero.sum().item() == 0


def test_make_fx_keeps_fakes_of_a_closure() -> None:
    """What depends on the input is in the graph, in the mode and after it."""
    with fake_mode():
        weight, x = torch.randn(3), torch.randn(3)
    for _ in range(2):  # the second time from the cache
        traced = torch.fx.experimental.proxy_tensor.make_fx(lambda t: t * weight.exp())(x)
        assert [n.op for n in traced.graph.nodes].count("call_function") == 2
