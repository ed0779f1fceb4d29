"""Indices that hold data: what they select from deferred tensors, in a mode and after it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchfake import deferred_mode, fake_mode, materialize_tensor
from torchfake._torch import backends
from torchfake.errors import UnknownValueError

INDICES = {
    "list": [0, 3],
    "negative": [-1],
    "bools": [True, False, True, False],
    "matrix of bools": ([[True, False, True]] * 4,),
    "list of lists": [[0, 1], [1, 2]],
    "deep": [[[0, 1]]],
    "ragged": [[1], [1, 2]],
    "empty": [],
    "floats": [0.5, 1.0],
    "long": [0] * 33,
    "numbers of numpy": [np.int64(1), np.int64(2)],
    "range": range(2),
    "array": np.array([0, 3]),
    "array of int32": np.array([1, 2], dtype=np.int32),
    "array of bools": np.array([True, False, True, False]),
    "number in an array": np.array(1),
    "list of arrays": [np.array([0, 1]), np.array([1, 1])],
    "list of tensors": [torch.tensor(0), torch.tensor(1)],
    "list with a slice": [0, slice(None)],
    "list with None": [None, 0],
    "tuple of lists": ([0, 1], [1, 2]),
    "tuple of tuples": ((0, 1), (1, 2)),
    "slice and list": (slice(None), [0, 2]),
    "ellipsis and list": (..., [1, 2]),
    "None and list": ([0, 1], None, 0),
    "list that holds a tensor": ([torch.tensor(0), 1],),
}
PARTS = (list, slice, torch.Tensor, np.ndarray, type(None))
FORMS = {
    "get": lambda x, index: x[index],
    "set number": lambda x, index: x.__setitem__(index, 7) or x,
    "set tensor": lambda x, index: x.__setitem__(index, torch.tensor(7.0)) or x,
    "backward": lambda x, index: gradient(x.detach().requires_grad_(), index),
}


def gradient(leaf, index):
    return torch.autograd.grad(leaf[index].sum(), leaf)[0]


def made() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.filterwarnings("ignore")
def test_deferred(index) -> None:
    for name, form in FORMS.items():
        expected = form(made(), index)
        with deferred_mode():
            inside, outlived = form(made(), index), made()
        for got in (inside, form(outlived, index)):
            assert got.shape == expected.shape, name
            assert torch.equal(materialize_tensor(got), expected), name


def by_jvp(x, index):
    return torch.func.jvp(lambda t: t[index], (x,), (x,))[1]


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.filterwarnings("ignore")
def test_in_transforms(index) -> None:
    expected = by_jvp(made(), index)
    holds_list = backends.drops_data_on_meta() and holds_numbers(index)
    with deferred_mode():
        if holds_list:
            with pytest.raises((RuntimeError, UnknownValueError), match=r"torch\.tensor\("):
                by_jvp(made(), index)
            return
        got = by_jvp(made(), index)
    assert torch.equal(materialize_tensor(got), expected)


def holds_numbers(index) -> bool:
    """Whether C++ has to make a tensor of a list in an index, or of the index."""
    items = index if isinstance(index, tuple) else (index,)
    if isinstance(index, list) and any(isinstance(item, PARTS) for item in index):
        items = index
    return any(isinstance(item, (list, tuple, range)) for item in items)


def test_in_fake_mode() -> None:
    with fake_mode():
        x = made()
        assert x[[True, False, True, False]].shape == (2, 3)
        for refused in ("a", ["a", 0]):
            with pytest.raises(TypeError, match="invalid data type"):
                x[refused]


@pytest.mark.parametrize("factory", ["tensor", "as_tensor", "asarray"])
@pytest.mark.filterwarnings("ignore")
def test_data_on_the_device_of_an_argument(factory) -> None:
    """Inside of a transform an argument tells the device of its wrapper."""

    def scaled(x):
        return x * getattr(torch, factory)([3.0], device=x.device)

    with deferred_mode():
        got = torch.func.jvp(scaled, (made(),), (made(),))[1]
    assert torch.equal(materialize_tensor(got), made() * 3)


def test_data_on_meta() -> None:
    with fake_mode():
        assert torch.tensor([1], device="meta").is_meta
