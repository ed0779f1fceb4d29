"""Casts of weights that autocast keeps: as many as in eager, for as long, with the same values."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests._tensor.conftest import BF16, F16
from torchfake import deferred_mode, fake_mode, materialize_tensor
from torchfake._tensor.autocast import cache

GRAD_MODES = {"g": contextlib.nullcontext, "n": torch.no_grad, "i": torch.inference_mode}
MODES = {"fake": fake_mode, "deferred": deferred_mode}


class Casts(TorchDispatchMode):
    """Notes the shapes of what is cast."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith(("aten._to_copy", "aten.to.")):  # in inference mode, the latter
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def weight_and_input() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 4, requires_grad=True), torch.randn(2, 4)


def counted(program: Callable[[], Any], mode: Any) -> Any:
    with mode(), Casts() as casts:
        try:
            result = program()
        except RuntimeError as error:
            return "dtype" in str(error), casts.shapes
    return result, casts.shapes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_cached", [True, False])
def test_as_many_casts_as_in_eager(mode: str, is_cached: bool) -> None:
    """In all sequences of grad modes, with the same gradients."""
    for length in (1, 2, 3):
        for sequence in itertools.product(GRAD_MODES, repeat=length):

            def program(sequence: tuple[str, ...] = sequence) -> list[bool]:
                w, x = weight_and_input()
                found = []
                with torch.autocast("cpu", BF16, cache_enabled=is_cached):
                    for name in sequence:
                        with GRAD_MODES[name]():
                            found.append(torch.mm(x, w).requires_grad)
                return found

            expected = counted(program, contextlib.nullcontext)
            assert counted(program, MODES[mode]) == expected, sequence


def twice_in(first: Any, second: Any) -> None:
    w, x = weight_and_input()
    with torch.autocast("cpu", first):
        torch.mm(x, w)
        with torch.autocast("cpu", second):
            torch.mm(x, w)
        torch.mm(x, w)
    with torch.autocast("cpu", first):
        torch.mm(x, w)


def cleared() -> None:
    w, x = weight_and_input()
    with torch.autocast("cpu", BF16):
        torch.mm(x, w)
        torch.clear_autocast_cache()
        torch.mm(x, w)


def of_a_view() -> None:
    w, x = weight_and_input()
    with torch.autocast("cpu", BF16):
        for _ in range(2):
            torch.mm(x, w.t())


def of_two_leaves_of_one_memory() -> None:
    w, x = weight_and_input()
    alias = w.detach().requires_grad_()
    with torch.autocast("cpu", BF16):
        for leaf in (w, alias, w, alias):
            torch.mm(x, leaf)


def of_a_frozen_weight() -> None:
    w, x = weight_and_input()
    with torch.autocast("cpu", BF16):
        for _ in range(2):
            torch.mm(x, w.detach())


def where_hooks_are_forbidden() -> None:
    w, x = weight_and_input()
    with torch.autocast("cpu", BF16):
        torch.func.grad(lambda x: torch.mm(x, w).sum())(x)
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            torch.mm(x, w)


def where_hooks_see_what_is_saved() -> list[Any]:
    w, x = weight_and_input()
    seen: list[Any] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.shape), seen.append)
    with hooks, torch.autocast("cpu", BF16):
        torch.mm(x, w)
    return seen


def in_the_same_order() -> None:
    """The order decides in which order a backward pass frees memory."""
    x, layer, convolution = torch.randn(2, 3), nn.Linear(3, 5), nn.Conv2d(2, 3, 2)
    with torch.autocast("cpu", BF16):
        layer(x)
        torch.addmm(layer.bias, x, layer.weight.t())
        torch.baddbmm(torch.randn(2, 5, 6), torch.randn(2, 5, 4), torch.randn(2, 4, 6))
        convolution(torch.randn(1, 2, 5, 5))
        torch.cat([torch.randn(2, 3).bfloat16(), torch.randn(1, 3), torch.randn(3, 3)])
        query, key = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4)
        nn.functional.scaled_dot_product_attention(query, key, torch.randn(1, 1, 3, 4))


PROGRAMS: list[Callable[[], Any]] = [
    lambda: twice_in(BF16, BF16),
    lambda: twice_in(BF16, F16),  # refused: the first cast is found
    cleared,
    of_a_view,
    of_two_leaves_of_one_memory,
    of_a_frozen_weight,
    in_the_same_order,
    where_hooks_are_forbidden,
    where_hooks_see_what_is_saved,
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_casts_are_shared(program: Callable[[], Any], mode: str) -> None:
    assert counted(program, MODES[mode]) == counted(program, contextlib.nullcontext)


def test_a_cast_is_not_renewed_when_the_weight_is_written() -> None:
    """In eager the cast keeps the old values, so it does here."""

    def program() -> list[torch.Tensor]:
        torch.manual_seed(0)
        w, x = weight_and_input()
        with torch.autocast("cpu", BF16):
            found = [torch.mm(x, w)]
            with torch.no_grad():
                w.add_(100)
            found.append(torch.mm(x, w))
            w.data = torch.zeros(4, 4)
            found.append(torch.mm(x, w))
        with torch.autocast("cpu", BF16):
            found.append(torch.mm(x, w))
        return [each.detach() for each in found]

    expected = program()
    with deferred_mode():
        made = program()
    for tensor, real in zip(made, expected, strict=True):
        assert torch.equal(materialize_tensor(tensor), real)
    assert torch.equal(expected[0], expected[2])
    assert not expected[3].any()


def kept_storages() -> list[Any]:
    return [weakref.ref(cast._fake_storage) for cast in cache._kept["casts"].values()]


def test_casts_are_freed_when_autocast_is_left() -> None:
    """At once, also those of weights that are gone, and outside of the mode."""
    with torch.autocast("cpu", BF16):
        with fake_mode():
            w, x = weight_and_input()
            with torch.no_grad():
                torch.mm(x, w)
            (kept,) = kept_storages()
            del w
            assert kept() is not None
            torch.mm(x, weight_and_input()[0])
            assert len(kept_storages()) == 2
        assert kept() is not None
    assert kept() is None
    assert "casts" not in cache._kept


def test_autocast_of_another_thread() -> None:
    """Torch has one cache, which is cleared when any thread leaves its autocast."""
    with fake_mode(), torch.autocast("cpu", BF16):
        w, x = weight_and_input()
        torch.mm(x, w)
        kept = kept_storages()

        def other() -> None:
            with torch.autocast("cpu", BF16):
                pass

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert "casts" not in cache._kept
        torch.mm(x, w)
        assert kept[0]() is None


def test_what_torch_is_set_to_stays() -> None:
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        with fake_mode(fake_cuda=True), torch.autocast("cuda", BF16):
            layer = nn.Linear(4, 4, device="cuda")
            assert layer(torch.ones(2, 4, device="cuda")).dtype == BF16
            assert torch.get_autocast_dtype("cpu") == torch.float16
            assert not torch.is_autocast_enabled("cpu")
    finally:
        torch.set_autocast_dtype("cpu", BF16)
