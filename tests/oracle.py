"""The oracle of deferred initialization: what eager construction gives under the same seed.

Input: a function that builds a module. Output: nothing, or an AssertionError that names the first
tensor that differs. Bits are compared, not values: NaN equals itself, and 0.0 is not -0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from torchfake import deferred_init, is_deferred, materialize_module, materialize_tensor

Order = Callable[[Any], None]
"""Materializes a module, in some order."""


def at_once(module: nn.Module) -> None:
    materialize_module(module)


def one_at_a_time(module: nn.Module) -> None:
    for _, tensor in named_tensors(module):
        materialize_tensor(tensor)


def reversed_one_at_a_time(module: nn.Module) -> None:
    for _, tensor in reversed(list(named_tensors(module))):
        materialize_tensor(tensor)


def submodules_reversed(module: nn.Module) -> None:
    for submodule in reversed(list(module.modules())):
        materialize_module(submodule)


ORDERS: list[Order] = [at_once, one_at_a_time, reversed_one_at_a_time, submodules_reversed]


def named_tensors(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Parameters and buffers, with non-persistent buffers, under each of their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def bits(tensor: torch.Tensor) -> bytes:
    with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        flat.view(tensor.shape).copy_(tensor.detach())
        return bytes(flat.view(torch.uint8).numpy().tobytes())


def metadata_of(module: nn.Module) -> list[Any]:
    """All that must be equal besides bits: names, ties, metadata."""
    first: dict[int, str] = {}
    shared: dict[int, str] = {}
    return [
        (
            name, type(t).__mro__[0].__name__, tuple(t.shape), t.stride(), t.storage_offset(),
            t.dtype, t.device, t.requires_grad, t.untyped_storage().nbytes(), sorted(t.__dict__),
            first.setdefault(id(t), name), shared.setdefault(t.untyped_storage()._cdata, name),
        )
        for name, t in named_tensors(module)
    ]  # fmt: skip


def assert_same(eager: nn.Module, materialized: nn.Module) -> None:
    """A module of eager mode and one that was materialized have equal names, metadata and bits."""
    assert not is_deferred(materialized)
    assert metadata_of(materialized) == metadata_of(eager)
    pairs = zip(named_tensors(eager), named_tensors(materialized), strict=True)
    for (name, expected), (_, tensor) in pairs:
        assert bits(tensor) == bits(expected), f"{name} has other bits than eager's"


def assert_equals_eager(
    build: Callable[[], nn.Module],
    orders: Iterable[Order] = ORDERS,
    *,
    seed: int = 0,
    counted: bool = True,
) -> None:
    """``build()``, deferred and materialized in each order, is the module of eager mode.

    Args:
        build: constructs the module.
        orders: in which it is materialized.
        seed: of the global generator, before each construction.
        counted: whether all draws can be counted, so that the global generator ends where eager
            leaves it.
    """
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
        assert_same(eager, module)
