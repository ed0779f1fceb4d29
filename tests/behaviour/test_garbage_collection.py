"""Fakes are freed with their last reference: no cycle, cache or frame keeps them alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.behaviour.networks import conv_network
from torchfake import FakeTensor, fake_like, fake_mode


def assert_no_cycles(program: Callable[[], Any]) -> None:
    """``program`` leaves no tensor for the collector that eager does not leave."""
    program()  # makes what is made only once
    counts = []
    for run in (program, lambda: None):
        gc.collect()
        gc.disable()
        try:
            run()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            counts.append([type(o) for o in gc.garbage if isinstance(o, torch.Tensor)])
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert counts[0] == counts[1] == []


def train_and_read() -> None:
    module = nn.Linear(3, 3)
    for _ in range(3):
        x = torch.randn(2, 3, requires_grad=True)
        y = module(x)[0].view(-1).relu()
        y.sum().backward()
        z = torch.arange(6).view(2, 3)
        z.add_(1).tolist()


def test_no_cycles() -> None:
    """Inside a mode, after it, and when fakes are copied."""
    with fake_mode():
        module = nn.Linear(3, 3)

    def inside() -> None:
        with fake_mode(fake_cuda=True):
            train_and_read()

    def outside() -> None:
        module(fake_like(torch.ones(2, 3))).sum().backward()
        module.zero_grad()
        (module.weight.detach() + 1).to("cuda:1").t_()

    assert_no_cycles(inside)
    assert_no_cycles(outside)


def test_a_fake_is_freed_with_its_last_reference() -> None:
    """The collector is not needed. Its storage and its mode are freed too."""
    gc.collect()
    gc.disable()
    try:
        with fake_mode() as mode:
            tensor = torch.ones(3)
            view = tensor[1:]
            result = (nn.Linear(3, 3)(tensor) + view.sum()).relu()
        refs = [weakref.ref(o) for o in (tensor, view, result, tensor._fake_storage, mode)]
        untyped = weakref.ref(tensor.untyped_storage())
        del tensor, view, result, mode
        assert [ref() for ref in refs] == [None] * len(refs)
        assert untyped() is None
    finally:
        gc.enable()


def test_no_cache_keeps_a_fake_alive() -> None:
    """No cache or global holds a tensor, whatever was done with it."""

    def count() -> int:
        gc.collect()
        return sum(issubclass(type(o), FakeTensor) for o in gc.get_objects())

    before = count()
    for _ in range(2):
        with fake_mode():
            train_and_read()
            with pytest.raises(ValueError, match="not known"):
                torch.randn(65).tolist()
            with pytest.raises(RuntimeError):
                torch.ones(2) @ torch.ones(3)
            module = conv_network()
            torch.optim.AdamW(module.parameters(), foreach=True).step()
            del module
    assert count() == before


def test_a_source_location_keeps_no_frame_alive() -> None:
    """The locals of the function that made a tensor are freed."""

    class Local:
        pass

    def make() -> tuple[torch.Tensor, Any]:
        local = Local()
        with fake_mode():
            return torch.randn(65), weakref.ref(local)

    tensor, local = make()
    assert local() is None
    with pytest.raises(ValueError, match=r"test_garbage_collection\.py.* in make"):
        tensor.tolist()
