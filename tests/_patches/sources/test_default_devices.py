"""Tensors made of fakes under a default device, and values read on a fake device.

Eager on the CPU says which device a result has: of these, only ``new_tensor`` looks at its tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from torchfake import deferred_mode, fake_mode, is_fake, materialize_tensor

MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda x: torch.tensor([x, 2 * x]),
    "nested": lambda x: torch.tensor([[x, 1.0], [2, x]]),
    "data=": lambda x: torch.tensor(data=[x, 3]),
    "of one": lambda x: torch.tensor(x),
    "dtype": lambda x: torch.tensor([x, x], dtype=torch.float16),
    "as_tensor": lambda x: torch.as_tensor([x, x]),
    "as_tensor of one": lambda x: torch.as_tensor(x),
    "asarray": lambda x: torch.asarray([x, x]),
    "asarray of one": lambda x: torch.asarray(x),
    "new_tensor": lambda x: x.new_tensor([x, 2.0]),
    "new_tensor of one": lambda x: x.new_tensor(x),
    "named": lambda x: torch.tensor([x, x], device="cpu"),
}


@contextmanager
def default_device(device: str, *, is_global: bool) -> Iterator[None]:
    if is_global:
        torch.set_default_device(device)
        try:
            yield
        finally:
            torch.set_default_device(None)
    else:
        with torch.device(device):
            yield


@pytest.mark.parametrize("is_global", [False, True])
@pytest.mark.parametrize("default", ["cpu", "cuda", "cuda:0", "meta"])
@pytest.mark.parametrize("own", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", MADE)
def test_of_fakes_under_a_default_device(
    name: str, mode: Any, own: str, default: str, is_global: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.tensor(tensor)
        values = MADE[name](torch.tensor(1.5))
        with mode(fake_cuda=True):
            x = torch.tensor(1.5, device=own)
            with default_device(default, is_global=is_global):
                made = MADE[name](x)
    follows = "new_tensor" in name
    expected = torch.device("cpu" if name == "named" else own if follows else default)
    assert made.device.type == expected.type
    assert (made.dtype, made.shape) == (values.dtype, values.shape)
    if made.device.type != "meta":
        assert is_fake(made)
        assert made.tolist() == values.tolist()
        if mode is deferred_mode:
            assert torch.equal(materialize_tensor(made, device="cpu"), values)


READS: dict[str, Callable[[str], Any]] = {
    "items": lambda d: [rate.item() for rate in torch.linspace(0, 1, 4, device=d)],
    "tolist": lambda d: torch.arange(4, device=d).tolist(),
    "a mask": lambda d: torch.arange(4, device=d)[torch.arange(4, device=d) > 1].tolist(),
    "a mask on the CPU": lambda d: torch.arange(4, device=d)[torch.arange(4) > 1].tolist(),
    "a list of bools": lambda d: torch.arange(2, device=d)[[True, False]].tolist(),
    "nonzero": lambda d: torch.tensor([0, 1], device=d).nonzero().tolist(),
    "where": lambda d: torch.where(torch.arange(3, device=d) > 0)[0].tolist(),
    "unique": lambda d: torch.unique(torch.tensor([1, 1, 2], device=d)).tolist(),
    "masked_select": lambda d: torch.arange(3, device=d).masked_select(_known_mask(d)).tolist(),
    "equal": lambda d: torch.equal(torch.ones(2, device=d), torch.ones(2, device=d)),
    "bool": lambda d: bool(torch.ones(1, device=d) > 0),
    "int": lambda d: int(torch.tensor(3, device=d)),
    "moved back": lambda d: torch.arange(3, device=d).cpu().numpy().tolist(),
    "moved there": lambda d: torch.arange(3).to(d).sum().item(),
    "repeats": lambda d: torch.repeat_interleave(torch.tensor([1, 2], device=d)).tolist(),
    "one_hot": lambda d: torch.nn.functional.one_hot(torch.tensor([0, 2], device=d)).tolist(),
    "a list of them": lambda d: torch.tensor([torch.tensor(1.0, device=d), 2.0]).tolist(),
}


def _known_mask(device: str) -> Tensor:
    return torch.tensor([True, False, True], device=device)


DRAWS: dict[str, Callable[[str], Any]] = {
    "randperm": lambda d: torch.randperm(5, device=d).tolist(),
    "randint": lambda d: torch.randint(9, (3,), device=d).tolist(),
    "rand": lambda d: torch.rand(3, device=d).tolist(),
    "normal_": lambda d: torch.empty(3, device=d).normal_().tolist(),
    "a generator": lambda d: torch.rand(
        3, device=d, generator=torch.Generator(d).manual_seed(5)
    ).tolist(),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", READS)
def test_values_are_read_on_fake_cuda(name: str, mode: Any) -> None:
    with mode(fake_cuda=True):
        found = READS[name]("cuda")
    assert found == READS[name]("cpu")


@pytest.mark.parametrize("name", DRAWS)
def test_draws_on_fake_cuda_are_read_alike_in_both_modes(name: str) -> None:
    found = []
    for mode in (fake_mode, deferred_mode):
        torch.manual_seed(0)
        with mode(fake_cuda=True):
            found.append(DRAWS[name]("cuda"))
    assert found[0] == found[1]


REAL: dict[str, Any] = {
    "array": numpy.arange(3.0),
    "number of numpy": numpy.float32(3),
    "arrays": [numpy.arange(2), numpy.arange(2)],
    "tensor": torch.ones(2),
    "numbers": [1, 2],
}


@pytest.mark.filterwarnings("ignore:.*(sourceTensor|extremely slow)")
@pytest.mark.parametrize("is_global", [False, True])
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("make", ["tensor", "as_tensor", "asarray"])
@pytest.mark.parametrize("name", REAL)
def test_of_data_under_a_default_device(name: str, make: str, mode: Any, is_global: bool) -> None:
    expected = getattr(torch, make)(REAL[name])
    with mode(fake_cuda=2), default_device("cuda", is_global=is_global), torch.cuda.device(1):
        found = getattr(torch, make)(REAL[name])
        assert found.device == torch.device("cuda:1")
        assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
        assert getattr(torch, make)(REAL[name], device="cpu").device == torch.device("cpu")


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_the_constructor_of_tensors_takes_lists_of_fakes(mode: Any) -> None:
    with mode():
        one = torch.tensor(1)
        assert torch.Tensor([one, 2]).tolist() == [1.0, 2.0]
        assert torch.Tensor([[one], (2 * one,)]).tolist() == [[1.0], [2.0]]
        with pytest.raises(TypeError, match=r"FloatTensor.*use torch\.tensor"):
            torch.FloatTensor([one])
