"""Known values: which fakes have one, what reading it gives, and that no array is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchfake import deferred_mode, fake_mode, is_fake
from torchfake.errors import UnknownValueError

REAL = torch.tensor([3, 1, 2])
ARRAY = np.arange(6.0).reshape(2, 3)

HOST_DATA: dict[str, Callable[[], Tensor]] = {
    "python": lambda: torch.tensor([[1, 2], [3, 4]]),
    "number": lambda: torch.tensor(2.5),
    "bfloat16": lambda: torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
    "complex": lambda: torch.tensor([1 + 2j]).conj(),
    "numpy": lambda: torch.from_numpy(ARRAY),
    "arange": lambda: torch.arange(5),
    "linspace": lambda: torch.linspace(0, 1, 5),
    "zeros": lambda: torch.zeros(2, 3),
    "ones": lambda: torch.ones(3, dtype=torch.bool),
    "full": lambda: torch.full((2, 2), 7),
    "eye": lambda: torch.eye(3),
    "real": lambda: REAL + 0,
    "computed": lambda: 10000.0 ** -(torch.arange(0, 8, 2) / 8),
    "outer": lambda: torch.outer(torch.arange(3.0), torch.ones(2)).cos(),
    "like": lambda: torch.zeros_like(torch.ones(2), dtype=torch.int64),
    "new": lambda: torch.ones(1).new_full((2,), 3),
    "cat": lambda: torch.cat([torch.arange(2), torch.ones(2, dtype=torch.int64)]),
    "where": lambda: torch.where(torch.arange(4) > 1, torch.arange(4), 0),
    "sort": lambda: torch.tensor([3, 1, 2]).sort(descending=True).indices,
    "cumsum": lambda: torch.arange(4).cumsum(0),
    "tril": lambda: torch.ones(3, 3).tril().bool(),
    "one_hot": lambda: torch.nn.functional.one_hot(torch.arange(3)),
    "view": lambda: torch.arange(6).view(2, 3).t()[1:],
    "expand": lambda: torch.arange(2).expand(3, 2),
    "half": lambda: torch.arange(3).half(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)) * 2,
    "set": lambda: torch.empty(0).set_(torch.arange(4.0), 1, (2,), (1,)),
    "meshgrid": lambda: torch.stack(
        torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")
    ),
}


@pytest.mark.parametrize("fake_cuda", [False, True])
@pytest.mark.parametrize("name", HOST_DATA)
def test_host_data_keeps_its_value(name: str, fake_cuda: bool) -> None:
    make = HOST_DATA[name]
    expected = make()
    with fake_mode(fake_cuda=fake_cuda):
        fake = make().cuda() if fake_cuda else make()
        inside = fake.tolist()
    assert is_fake(fake)
    assert fake.is_cuda == fake_cuda
    assert inside == fake.tolist() == expected.tolist()


READS: dict[str, Callable[[], Any]] = {
    "item": lambda: torch.arange(3)[1].item(),
    "bool": lambda: [bool(torch.tensor(1)), bool(torch.zeros(()))],
    "if": lambda: "yes" if torch.arange(3).sum() > 2 else "no",
    "int": lambda: int(torch.tensor(3.7)),
    "float": lambda: float(torch.tensor(3)),
    "complex": lambda: complex(torch.tensor(1j)),
    "index": lambda: [10, 20, 30][torch.tensor(1)],
    "range": lambda: list(range(torch.tensor(3))),
    "math": lambda: math.sqrt(torch.tensor(4)),
    "iteration": lambda: [int(t) for t in torch.arange(3)],
    "unpacking": lambda: [t.item() for t in (lambda a, b: (b, a))(*torch.arange(2))],
    "rows": lambda: [row.tolist() for row in torch.arange(4).view(2, 2)],
    "in": lambda: [2 in torch.arange(3), 3 in torch.arange(3)],
    "equal": lambda: torch.equal(torch.arange(3), torch.tensor([0, 1, 2])),
    "equal_real": lambda: torch.equal(torch.tensor([3, 1, 2]), REAL),
    "allclose": lambda: torch.allclose(torch.ones(2), torch.ones(2) + 1e-9),
    "numpy": lambda: torch.arange(6.0).view(2, 3).t().numpy().tolist(),
    "array": lambda: np.asarray(torch.arange(3)).tolist(),
    "ufunc": lambda: np.sqrt(torch.tensor([4.0, 9.0]).numpy()).tolist(),
    "numpy_sum": lambda: float(np.sum(np.asarray(torch.arange(4)))),
    "format": lambda: f"{torch.tensor(0.123):.2f} {torch.tensor(7):03d}",
    "round": lambda: round(torch.tensor(2.6).item()),
    "all": lambda: bool((torch.arange(3) >= 0).all()),
    "max": lambda: max(torch.tensor([1, 5, 3])).item(),
    "sorted": lambda: [int(t) for t in sorted(torch.tensor([3, 1, 2]))],
    "nonzero": lambda: (torch.arange(4) % 2).nonzero().tolist(),
    "where": lambda: torch.where(torch.arange(4) > 1)[0].tolist(),
    "masked_select": lambda: torch.arange(4).masked_select(torch.arange(4) > 1).tolist(),
    "mask": lambda: torch.arange(6).view(2, 3)[torch.tensor([False, True])].tolist(),
    "argwhere": lambda: torch.argwhere(torch.eye(2)).tolist(),
    "unique": lambda: torch.tensor([3, 1, 3]).unique().tolist(),
    "unique_inverse": lambda: [
        t.tolist() for t in torch.tensor([3, 1]).unique(return_inverse=True)
    ],
    "unique_consecutive": lambda: torch.tensor([1, 1, 2]).unique_consecutive().tolist(),
    "bincount": lambda: torch.tensor([0, 2, 2]).bincount().tolist(),
    "repeat_interleave": lambda: torch.arange(2).repeat_interleave(torch.tensor([2, 1])).tolist(),
    "split_by_list": lambda: [
        t.tolist() for t in torch.arange(5).split(torch.tensor([2, 3]).tolist())
    ],
    "tensor_split": lambda: [len(t) for t in torch.arange(5).tensor_split(torch.tensor([1, 3]))],
    "is_nonzero": lambda: torch.is_nonzero(torch.tensor(1)),
    "size_from_value": lambda: tuple(torch.zeros(torch.tensor(2), torch.tensor([3])[0]).shape),
    "slice": lambda: torch.arange(9)[torch.tensor(2) : torch.tensor(5)].tolist(),
    "dlpack": lambda: np.from_dlpack(torch.arange(3)).tolist(),
    "hash_and_is": lambda: len({torch.tensor(1), torch.tensor(1)}),
    "tensor_of_tensors": lambda: torch.tensor([torch.tensor(1), torch.tensor(2)]).tolist(),
    "scatter": lambda: torch.zeros(4).scatter(0, torch.tensor([1, 3]), 1.0).tolist(),
}


@pytest.mark.parametrize("name", READS)
def test_reads_give_eagers_values(name: str) -> None:
    expected = READS[name]()
    with fake_mode():
        assert READS[name]() == expected


UNKNOWN: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda t: t[0].item(),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "asarray": np.asarray,
    "bool": lambda t: bool(t.sum() > 0),
    "float": lambda t: float(t[0]),
    "int": lambda t: int(t[0]),
    "index": lambda t: [1, 2][t[0].long()],
    "range": lambda t: range(t[0].long()),
    "math": lambda t: math.sqrt(t[0]),
    "in": lambda t: 1.0 in t,
    "format": lambda t: f"{t[0]:.2f}",
    "equal": lambda t: torch.equal(t, torch.ones(3)),
    "allclose": lambda t: torch.allclose(t, t),
    "nonzero": lambda t: t.nonzero(),
    "where": lambda t: torch.where(t > 0),
    "mask": lambda t: t[t > 0],
    "masked_select": lambda t: t.masked_select(t > 0),
    "unique": lambda t: t.unique(),
    "repeat_interleave": lambda t: torch.arange(3).repeat_interleave(t.long()),
    "tensor_split": lambda t: torch.arange(3).tensor_split(t.long()),
    "dlpack": np.from_dlpack,
    "max": max,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_values_are_an_error_that_names_the_origin(name: str) -> None:
    with fake_mode():
        weight = torch.empty(3)
        with pytest.raises(UnknownValueError) as caught:
            UNKNOWN[name](weight)
    assert __file__ in str(caught.value)
    assert "torchfake.is_fake(tensor)" in str(caught.value)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2**16), (torch.int64, 2**20)])
def test_size_limit(dtype: torch.dtype, limit: int) -> None:
    count = limit // dtype.itemsize
    with fake_mode():
        assert torch.arange(count, dtype=dtype)[-1].item() == count - 1
        with pytest.raises(UnknownValueError):
            torch.arange(count + 1, dtype=dtype)[0].item()


def test_numpy_results_are_copies() -> None:
    with fake_mode():
        fake = torch.zeros(3)
        fake.numpy()[0] = 5
        assert fake.tolist() == [0.0, 0.0, 0.0]


LAZY = {
    "conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3j]).conj().imag,
    "zero": lambda: torch._efficientzerotensor(2),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("read", [lambda t: t.numpy(), np.asarray, lambda t: t.tolist()])
@pytest.mark.parametrize("name", LAZY)
def test_lazy_views_are_arrays_as_in_eager(name, read, mode) -> None:
    def outcome():
        try:
            return list(read(LAZY[name]()))
        except RuntimeError as error:
            return str(error)

    expected = outcome()
    with mode():
        assert outcome() == expected
        assert LAZY[name]().numpy(force=True).tolist() == LAZY[name]().clone().tolist()


def test_only_tensors_on_the_cpu_are_arrays() -> None:
    with pytest.raises(TypeError) as real:
        torch.ones(3, device="meta").numpy()
    with fake_mode(fake_cuda=True):
        fake = torch.ones(3, device="cuda")
        for program in (fake.numpy, lambda: np.asarray(fake)):
            with pytest.raises(TypeError) as caught:
                program()
            assert str(caught.value) == str(real.value).replace("meta", "cuda:0")
        assert fake.numpy(force=True).tolist() == fake.cpu().numpy().tolist() == [1.0, 1.0, 1.0]


def test_arrays_are_never_written() -> None:
    array = np.arange(3.0)
    with fake_mode():
        for fake in (torch.from_numpy(array), torch.as_tensor(array), torch.asarray(array)):
            fake.add_(1)
            assert fake.tolist() == [1.0, 2.0, 3.0]
        buffer = bytearray(b"\x01\x02")
        torch.frombuffer(buffer, dtype=torch.uint8).zero_()
    assert array.tolist() == [0.0, 1.0, 2.0]
    assert buffer == b"\x01\x02"
