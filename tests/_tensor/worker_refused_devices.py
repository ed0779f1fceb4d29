"""What CUDA refuses or accepts of gradients and generators on another device, against fake CUDA.

    python -m tests._tensor.worker_refused_devices

``tests/cuda_stand_in`` stands in for CUDA; torch has to be built for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import autograd

from tests.cuda_stand_in.worker_main import compare_with_cuda

Programs = dict[str, Callable[[], Any]]


class Moves(autograd.Function):
    """Doubles the second of three arguments; its gradient is moved."""

    @staticmethod
    def forward(ctx: Any, other: Any, x: torch.Tensor, _: int) -> torch.Tensor:
        ctx.other = other
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return None, grad.to(ctx.other), None


def leaf(device: str, *size: int) -> torch.Tensor:
    return torch.ones(*size or (2, 3), device=device).requires_grad_()


def grad_after(run: Callable[[torch.Tensor], Any], device: str) -> Any:
    """The device, dtype and size of the gradient of a leaf on `device` after ``run(leaf)``."""
    x = leaf(device)
    found = run(x)
    grad = found[0] if isinstance(found, tuple) else x.grad
    return None if grad is None else (str(grad.device), str(grad.dtype), list(grad.shape))


def hooked(hook: Callable[[Any], Any], x: torch.Tensor) -> None:
    y = x * 2
    y.register_hook(hook)
    y.sum().backward()


def gradients(here: str, there: str) -> Programs:
    """Gradients of tensors `here`, of which some are `there`."""
    other = functools.partial(torch.ones, 2, 3, device=there)
    own = functools.partial(torch.ones, 2, 3, device=here)
    number = functools.partial(torch.ones, (), device=there)

    def edge(x: torch.Tensor) -> Any:
        return autograd.graph.get_gradient_edge(x * 2)

    runs: dict[str, Callable[[torch.Tensor], Any]] = {
        "assigned": lambda x: setattr(x, "grad", other()),
        "assigned in another dtype": lambda x: setattr(x, "grad", own().double()),
        "assigned with another size": lambda x: setattr(x, "grad", own()[0]),
        "backward": lambda x: (x * 2).backward(other()),
        "backward of an edge": lambda x: autograd.backward(edge(x), other()),
        "backward in another dtype": lambda x: (x * 2).backward(own().double()),
        "backward with another size": lambda x: (x * 2).backward(own()[0]),
        "backward of a number": lambda x: x.sum().backward(number()),
        "grad": lambda x: autograd.grad(x * 2, x, other()),
        "second grad": lambda x: autograd.grad([x * 2, x * 3], x, [own(), other()]),
        "function": lambda x: Moves.apply(torch.device(there), x, 1).sum().backward(),
        "hook": functools.partial(hooked, lambda grad: grad.to(there)),
        "hook in another dtype": functools.partial(hooked, lambda grad: grad.double()),
        "hook with another size": functools.partial(hooked, lambda grad: grad[0]),
    }
    return {
        f"{name} on {here}": functools.partial(grad_after, run, here) for name, run in runs.items()
    }


def draws(here: str, there: str, *size: int) -> Programs:
    """Draws `here` from a generator `there`."""
    size = size or (3,)

    def x() -> torch.Tensor:
        return torch.ones(size, device=here)

    runs: dict[str, Callable[[Any], Any]] = {
        "randn": lambda g: torch.randn(size, device=here, generator=g),
        "rand": lambda g: torch.rand(size, device=here, generator=g),
        "randint": lambda g: torch.randint(5, size, device=here, generator=g),
        "randperm": lambda g: torch.randperm(size[0], device=here, generator=g),
        "normal of numbers": lambda g: torch.normal(0.0, 1.0, size, device=here, generator=g),
        "normal": lambda g: torch.normal(x(), x(), generator=g),
        "normal_": lambda g: x().normal_(generator=g),
        "uniform_": lambda g: x().uniform_(generator=g),
        "exponential_": lambda g: x().exponential_(generator=g),
        "random_": lambda g: x().random_(generator=g),
        "bernoulli": lambda g: torch.bernoulli(x(), generator=g),
        "bernoulli_": lambda g: x().bernoulli_(0.5, generator=g),
        "multinomial": lambda g: torch.multinomial(x(), 2, generator=g),
        "trunc_normal_": lambda g: torch.nn.init.trunc_normal_(x(), generator=g),
    }
    if size[0] == 0:
        runs.pop("multinomial")

    def drawn(run: Callable[[Any], Any]) -> str:
        return str(run(torch.Generator(there)).device)

    return {
        f"{name} {[*size]} on {here} from {there}": functools.partial(drawn, run)
        for name, run in runs.items()
    }


def outcome(program: Callable[[], Any]) -> Any:
    try:
        return program()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def programs() -> Programs:
    found = {**gradients("cpu", "cuda"), **gradients("cuda", "cpu")}
    for here in ("cpu", "cuda"):
        for there in ("cpu", "cuda"):
            found |= {**draws(here, there), **draws(here, there, 0)}
    return found


def _all() -> dict[str, Any]:
    return {name: outcome(program) for name, program in programs().items()}


if __name__ == "__main__":
    compare_with_cuda("tests._tensor.worker_refused_devices", _all)
