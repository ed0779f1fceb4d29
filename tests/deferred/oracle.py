"""The one oracle of deferred initialisation: what eager construction gives under the same seed.

Enters: something that builds. Leaves: nothing, or the first tensor that differs. Bits are compared,
not values: NaN equals itself, and 0.0 is not -0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from torchfake import deferred_init, is_deferred, materialize_module, materialize_tensor

Order = Callable[[Any], None]


def at_once(module: nn.Module) -> None:
    materialize_module(module)


def one_at_a_time(module: nn.Module) -> None:
    for _, tensor in named(module):
        materialize_tensor(tensor)


def reversed_one_at_a_time(module: nn.Module) -> None:
    for _, tensor in reversed(list(named(module))):
        materialize_tensor(tensor)


def submodules_reversed(module: nn.Module) -> None:
    for submodule in reversed(list(module.modules())):
        materialize_module(submodule)


ORDERS: list[Order] = [at_once, one_at_a_time, reversed_one_at_a_time, submodules_reversed]


def named(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Parameters and buffers, those left out of the state too, under each of their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def bits(tensor: torch.Tensor) -> bytes:
    with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        flat.view(tensor.shape).copy_(tensor.detach())
        return bytes(flat.view(torch.uint8).numpy().tobytes())


def described(module: nn.Module) -> list[Any]:
    """All that must be equal: names, ties, metadata."""
    first: dict[int, str] = {}
    shared: dict[int, str] = {}
    return [
        (
            name, type(t).__mro__[0].__name__, tuple(t.shape), t.stride(), t.storage_offset(),
            t.dtype, t.device, t.requires_grad, t.untyped_storage().nbytes(), sorted(t.__dict__),
            first.setdefault(id(t), name), shared.setdefault(t.untyped_storage()._cdata, name),
        )
        for name, t in named(module)
    ]  # fmt: skip


def assert_same(eager: nn.Module, made: nn.Module, but: Iterable[str] = ()) -> None:
    """`but`: names of tensors that eager leaves uninitialised."""
    assert not is_deferred(made)
    assert described(made) == described(eager)
    for (name, expected), (_, tensor) in zip(named(eager), named(made), strict=True):
        if name not in but:
            assert bits(tensor) == bits(expected), f"{name} has other bits than eager's"


def assert_equals_eager(
    build: Callable[[], nn.Module],
    orders: Iterable[Order] = ORDERS,
    *,
    seed: int = 0,
    but: Iterable[str] = (),
    counted: bool = True,
) -> None:
    """`counted`: whether all draws can be counted, so that the global generator is placed."""
    torch.manual_seed(seed)
    eager = build()
    state = torch.get_rng_state()
    for order in orders:
        torch.manual_seed(seed)
        module = deferred_init(build)
        after = torch.get_rng_state()
        if counted:
            assert torch.equal(after, state), "the generator is not where eager left it"
        order(module)
        assert torch.equal(torch.get_rng_state(), after), "the generator was moved"
        assert_same(eager, module, but)
