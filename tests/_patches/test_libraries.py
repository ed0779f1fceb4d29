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
