"""Settings of torch that a context changes, and restores."""

from __future__ import annotations

from typing import Any

import torch

from torchfake._torch import autograd, backends, subclass


def test_inference_and_grad_modes() -> None:
    with autograd.inference_mode(True):
        assert torch.is_inference_mode_enabled()
        with autograd.inference_mode(False):
            assert not torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()
    with autograd.no_grad():
        assert not torch.is_grad_enabled()
        with autograd.enable_grad():
            assert torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_default_dtype() -> None:
    with backends.default_dtype(torch.float16):
        assert torch.get_default_dtype() is torch.float16
    assert torch.get_default_dtype() is torch.float32


def test_autocast_off() -> None:
    with torch.autocast("cpu", dtype=torch.float16), backends.autocast_off("cpu"):
        assert not torch.is_autocast_enabled("cpu")
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    assert not torch.is_autocast_enabled("cpu")


def test_keeping_state() -> None:
    state = torch.get_rng_state()
    with backends.keeping_state(torch.default_generator):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)


def test_without_subclass_functions() -> None:
    def call(value: Any, *, other: int) -> Any:
        return torch._C._get_torch_function_state(), value, other

    state = torch._C._get_torch_function_state()
    inside, value, other = subclass.without_subclass_functions(call, (1,), {"other": 2})
    assert (value, other) == (1, 2)
    assert inside != state == torch._C._get_torch_function_state()
