"""Lazy views of real tensors give lists and arrays in a mode: their values, and no other memory."""

import numpy as np
import pytest
import torch

from torchfake import deferred_mode, fake_like, fake_mode

COMPLEX = torch.tensor([1 + 2j, 3 - 1j])
VIEWS = {"conjugate": COMPLEX.conj(), "negative": COMPLEX.conj().imag, "plain": COMPLEX}
ORIGINALS = torch.Tensor.tolist, torch.Tensor.numpy


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", VIEWS)
def test_values_of_real_views(name, mode):
    view = VIEWS[name]
    listed, array = view.tolist(), view.numpy(force=True)
    with mode():
        assert view.tolist() == listed
        assert np.array_equal(view.numpy(force=True), array)
        assert torch.tensor(view.tolist()).tolist() == listed
        assert view[0].tolist() == listed[0]


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_what_needs_force_is_refused(mode):
    for name in ("conjugate", "negative"):
        with mode(), pytest.raises(RuntimeError, match=f"Tensor that has {name} bit set"):
            VIEWS[name].numpy()


def test_a_subclass_sees_only_its_own_call():
    calls = []

    class Noted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    noted = VIEWS["conjugate"].as_subclass(Noted)
    expected = noted.tolist()
    in_eager = calls.copy()
    calls.clear()
    with fake_mode():
        assert noted.tolist() == expected
    assert calls == in_eager


def test_after_the_mode_torch_is_as_it_was():
    with fake_mode():
        assert fake_like(COMPLEX).conj().is_conj()
    assert (torch.Tensor.tolist, torch.Tensor.numpy) == ORIGINALS
