"""Answers that torch's cached functions and libraries give in a mode, and after it."""

from __future__ import annotations

import functools
import sys
from types import ModuleType

import pytest
import torch
from torch.utils import _device

from torchfake import deferred_mode, fake_mode


@pytest.mark.parametrize("make", [fake_mode, deferred_mode])
def test_constructors_are_known_when_torch_has_forgotten_them(make: object) -> None:
    with make(fake_cuda=True):  # type: ignore[operator]
        _device._device_constructors.cache_clear()
        with torch.device("cuda"):
            assert torch.tensor([1.0]).is_cuda
            assert torch.ones(2).is_cuda
            assert torch.as_tensor([1.0]).is_cuda
    with torch.device("meta"):
        assert torch.tensor([1.0]).is_meta
        assert torch.ones(2).is_meta


def test_devices_that_a_library_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("accelerate.utils.imports")
    library.is_cuda_available = functools.cache(lambda: torch.cuda.is_available())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, library.__name__, library)
    before = torch.cuda.is_available()
    assert library.is_cuda_available() == before
    with fake_mode(fake_cuda=True):
        assert library.is_cuda_available()
    assert library.is_cuda_available() == before


def test_sizes_of_a_custom_operator() -> None:
    import torchfake
    from torchfake.errors import UnknownValueError

    @torch.library.custom_op("libraries::positive", mutates_args=())
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]

    @positive.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(max=x.numel()))

    with fake_mode():
        assert positive(torch.tensor([1.0, -1.0, 2.0])).tolist() == [1.0, 2.0]
        with pytest.raises(UnknownValueError, match=r"libraries\.positive"):
            positive(torch.randn(100))
        with torchfake.answering(lambda question: 7):
            assert positive(torch.randn(100)).shape == (7,)


def test_a_tensor_that_an_operator_takes_as_a_number() -> None:
    """C++ reads it: what is known or answered is read, what is not is a question."""
    from torchfake import answering, materialize_tensor
    from torchfake.errors import UnknownValueError

    @torch.library.custom_op("libraries::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float, shift: float | None = None) -> torch.Tensor:
        return x * factor + (shift or 0.0)

    scaled.register_fake(lambda x, factor, shift=None: torch.empty_like(x))
    call = torch.ops.libraries.scaled
    x = torch.arange(100.0)
    expected = call(x, x.norm(), shift=x.sum())
    with fake_mode():
        assert call(torch.ones(3), torch.tensor(2.0), shift=torch.tensor(1.0)).shape == (3,)
        with pytest.raises(UnknownValueError, match=r"item\(\)"):
            call(torch.randn(100), torch.randn(100).norm())
        with answering(lambda question: 7.0):
            assert call(torch.randn(100), torch.randn(100).norm()).shape == (100,)
        for wrong in (torch.ones((), requires_grad=True), "wrong"):
            with pytest.raises(RuntimeError, match="Expected a value of type"):
                call(torch.randn(100), wrong)
    with deferred_mode():
        x = torch.arange(100.0)
        result = call(x, x.norm(), shift=x.sum())
    assert torch.equal(materialize_tensor(result), expected)
