"""Derivatives for which C++ has another formula, or asks for the device, have the bits of eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchfake import deferred_mode, fake_mode, is_fake, materialize_tensor

Gradients = tuple[Tensor, ...]


def drawn(*shape: int, zeros: int = 0, dtype: Any = None) -> Tensor:
    tensor = torch.randn(shape, dtype=dtype)
    tensor.view(-1)[:zeros] = 0
    return tensor.requires_grad_()


def differentiated_twice(function: Callable[[Tensor], Tensor], zeros: int) -> Gradients:
    leaf = drawn(5, zeros=zeros)
    (first,) = torch.autograd.grad(function(leaf).square().sum(), leaf, create_graph=True)
    return first.detach(), *torch.autograd.grad(first.square().sum(), leaf)


def reverse_over_forward(function: Callable[[Tensor], Tensor], zeros: int) -> Gradients:
    primal, tangent = drawn(5, 3, zeros=zeros).detach(), torch.randn(5, 3)
    result, pull = torch.func.vjp(lambda x: torch.func.jvp(function, (x,), (tangent,))[1], primal)
    return result.detach(), *pull(torch.ones_like(result).detach())


NUM_ZEROS = (0, 1, 2)

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "prod": lambda x: x.prod(0),
    "cumprod": lambda x: x.cumprod(0),
    "vander": lambda x: torch.linalg.vander(x, N=5),
}


def group_norm(memory_format: Any, *is_trained: bool) -> Gradients:
    shape = (2, 6, 3, 4, 5) if memory_format == torch.channels_last_3d else (2, 6, 5, 7)
    x = torch.randn(shape).to(memory_format=memory_format)
    tensors = [x, torch.randn(6), torch.randn(6)]
    leaves = [t.requires_grad_() for t, trained in zip(tensors, is_trained, strict=True) if trained]
    result = F.group_norm(x, 3, *tensors[1:])
    return torch.autograd.grad(result, leaves, torch.randn_like(result))


def lu_solve(dtype: Any, left: bool, adjoint: bool) -> Gradients:
    matrix, right = drawn(2, 5, 5, dtype=dtype), drawn(2, 5, 5, dtype=dtype)
    factors, pivots = torch.linalg.lu_factor(matrix)
    result = torch.linalg.lu_solve(factors, pivots, right, left=left, adjoint=adjoint)
    return result.detach(), *torch.autograd.grad(result, (matrix, right), torch.randn_like(result))


def solve(dtype: Any, left: bool) -> Gradients:
    matrix, right = drawn(2, 5, 5, dtype=dtype), drawn(2, 5, 5, dtype=dtype)
    result = torch.linalg.solve(matrix, right, left=left)
    return result.detach(), *torch.autograd.grad(result, (matrix, right), torch.randn_like(result))


def of_one_element(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], zeros: int
) -> Gradients:
    """Along a dim of length one the gradient of subclasses is the incoming one, here expanded."""
    leaf = drawn(*shape, zeros=zeros)
    function(leaf).sum().backward()
    assert leaf.grad is not None
    return (leaf.grad,)


def under_checkpoint(function: Callable[[Tensor], Tensor], use_reentrant: bool) -> Gradients:
    leaf = drawn(3, 1)
    checkpoint(lambda x: function(2 * x).sin(), leaf, use_reentrant=use_reentrant).sum().backward()
    assert leaf.grad is not None
    return (leaf.grad,)


ALONG_LAST: dict[str, Callable[[Tensor], Tensor]] = {
    "prod": lambda x: x.prod(-1),
    "prod, kept": lambda x: x.prod(-1, keepdim=True),
    "cumprod": lambda x: x.cumprod(-1),
}

PROGRAMS: dict[str, Callable[[], Gradients]] = {
    **{
        f"{how.__name__}-{name}-{zeros}": lambda how=how, name=name, zeros=zeros: how(
            FUNCTIONS[name], zeros
        )
        for how in (differentiated_twice, reverse_over_forward)
        for name in FUNCTIONS
        for zeros in NUM_ZEROS
    },
    **{
        f"{name}-{shape}-{zeros}": lambda name=name, shape=shape, zeros=zeros: of_one_element(
            ALONG_LAST[name], shape, zeros
        )
        for name in ALONG_LAST
        for shape in ((2, 3, 1), (3, 2), (0, 1), (1,))
        for zeros in (0, 1)
    },
    **{
        f"checkpoint-{name}-{reentrant}": lambda name=name, reentrant=reentrant: under_checkpoint(
            ALONG_LAST[name], reentrant
        )
        for name in ALONG_LAST
        for reentrant in (True, False)
    },
    **{
        f"group_norm-{dims}-{trained}": lambda dims=dims, trained=trained: group_norm(
            dims, *trained
        )
        for dims in (torch.channels_last, torch.channels_last_3d)
        for trained in ((True, True, True), (True, False, False), (True, False, True))
    },
    **{
        f"lu_solve-{dtype}-{left}-{adjoint}": lambda dtype=dtype, left=left, adjoint=adjoint: (
            lu_solve(dtype, left, adjoint)
        )
        for dtype in (torch.float32, torch.complex64)
        for left in (True, False)
        for adjoint in (True, False)
    },
    **{
        f"solve-{dtype}-{left}": lambda dtype=dtype, left=left: solve(dtype, left)
        for dtype in (torch.float32, torch.complex64)
        for left in (True, False)
    },
}


def metadata(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_bits_of_eager(name: str) -> None:
    torch.manual_seed(0)
    expected = PROGRAMS[name]()
    torch.manual_seed(0)
    with deferred_mode():
        recorded = PROGRAMS[name]()
    for one, other in zip(map(Tensor.detach, recorded), expected, strict=True):
        assert is_fake(one)
        assert metadata(one) == metadata(other)
        made = materialize_tensor(one)
        assert metadata(made) == metadata(other)
        torch.testing.assert_close(made, other, rtol=0, atol=0, equal_nan=True)


_METADATA = ("group_norm", "solve", "checkpoint", "prod")


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n.startswith(_METADATA)])
def test_metadata_of_fakes(name: str) -> None:
    with fake_mode():
        fakes = PROGRAMS[name]()
    for one, other in zip(fakes, PROGRAMS[name](), strict=True):
        assert metadata(one) == metadata(other)


def test_a_real_leaf() -> None:
    """Of a real tensor in a mode only the incoming gradient is deferred."""
    real = torch.randn(40, requires_grad=True)
    expected = torch.autograd.grad(F.mish(real).sum(), real)[0]
    with deferred_mode():
        recorded = torch.autograd.grad(F.mish(real).sum(), real)[0]
    assert torch.equal(materialize_tensor(recorded), expected)


def test_group_norm_without_a_gradient_of_its_input() -> None:
    """Here the kernel of torch 2.13 for channels last ends the process: that is not asked for."""
    with fake_mode():
        weight, bias = group_norm(torch.channels_last, False, True, True)
    assert weight.shape == bias.shape == (6,)


@pytest.mark.parametrize("dims", [(), (0,), (-1,), (0, True)])
def test_the_gradient_of_the_product_of_a_number(dims: Any) -> None:
    def gradient() -> Tensor:
        x = torch.tensor(3.0, requires_grad=True)
        return torch.autograd.grad(x.prod(*dims), x, torch.tensor(0.7))[0]

    with deferred_mode():
        recorded = gradient()
    assert torch.equal(materialize_tensor(recorded), gradient())
