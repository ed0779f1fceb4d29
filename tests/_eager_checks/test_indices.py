"""Indices that eager's kernels refuse are refused at once, with eager's error, in deferred modes
too; indices of unknown value are assumed to be in range.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, randn, tensor
from torch.nn import functional as F

from torchfake import deferred_mode, fake_like, fake_mode, materialize_tensor

INDEXED: dict[str, Callable[[], Any]] = {
    "index": lambda: randn(300)[tensor([700])],
    "second dim": lambda: randn(300, 30)[:, tensor([-31])],
    "two indices": lambda: randn(300, 30)[tensor([[1], [2]]), tensor([[3, 4, 40]])],
    "apart": lambda: randn(300, 3, 30)[tensor([0]), :, tensor([30])],
    "after a mask": lambda: randn(4, 5, 60)[torch.ones(4, dtype=torch.bool), tensor([9])],
    "int32": lambda: randn(300)[tensor([300], dtype=torch.int32)],
    "nothing indexed": lambda: randn(300)[tensor([700]), torch.zeros(0, dtype=torch.int64)],
    "in range": lambda: randn(300)[tensor([-300, 299])],
    "index_put": lambda: randn(100).index_put((tensor([100]),), tensor(1.0)),
    "setitem": lambda: randn(100).__setitem__(tensor([100]), 1.0),
    "accumulate": lambda: randn(100).index_put((tensor([-101]),), tensor(1.0), accumulate=True),
    "index_select": lambda: randn(100, 3).index_select(0, tensor([100])),
    "index_select from the end": lambda: randn(100, 3).index_select(0, tensor([-1])),
    "index_select of a number": lambda: randn(()).index_select(0, tensor([1])),
    "index_add": lambda: randn(100, 3).index_add(0, tensor([100]), randn(1, 3)),
    "index_copy": lambda: randn(3, 100).index_copy(-1, tensor([100]), randn(3, 1)),
    "index_fill": lambda: randn(3, 100).index_fill(1, tensor([100]), 1.0),
    "index_fill from the end": lambda: randn(3, 100).index_fill(1, tensor([-100]), 1.0),
    "index_reduce": lambda: randn(100, 3).index_reduce(0, tensor([100]), randn(1, 3), "amax"),
    "gather": lambda: randn(4, 5, 60).gather(2, tensor([[[60]]])),
    "gather from the end": lambda: randn(100).gather(0, tensor([-1])),
    "take": lambda: randn(100).take(tensor([-101])),
    "put": lambda: randn(100).put(tensor([100]), randn(1)),
    "take_along_dim": lambda: torch.take_along_dim(randn(100), tensor([100]), 0),
    "scatter": lambda: randn(100).scatter(0, tensor([100]), 1.0),
    "scatter of a source": lambda: randn(100).scatter(0, tensor([100]), randn(1)),
    "scatter_add": lambda: randn(100).scatter_add(0, tensor([100]), randn(1)),
    "scatter_reduce": lambda: randn(100).scatter_reduce(0, tensor([100]), randn(1), "sum"),
    "embedding": lambda: nn.Embedding(30, 40)(tensor([[31]])),
    "embedding of floats": lambda: nn.Embedding(30, 40)(tensor([31.0])),
    "gather of floats": lambda: randn(100).gather(0, tensor([-1.0])),
    "index of int16": lambda: randn(300)[tensor([700], dtype=torch.int16)],
    "embedding from the end": lambda: nn.Embedding(30, 40)(tensor([-1])),
    "cross_entropy": lambda: F.cross_entropy(randn(30, 40), torch.full((30,), 40)),
    "cross_entropy ignored": lambda: F.cross_entropy(randn(30, 40), torch.full((30,), -100)),
    "ignored by name": lambda: F.cross_entropy(randn(2, 40), tensor([50, 1]), ignore_index=50),
    "cross_entropy negative": lambda: F.cross_entropy(randn(30, 40), torch.full((30,), -5)),
    "nll_loss": lambda: F.nll_loss(randn(40), tensor(40)),
    "nll_loss of a map": lambda: F.nll_loss(randn(3, 40, 5, 5), torch.full((3, 5, 5), 41)),
    "multi_margin_loss": lambda: F.multi_margin_loss(randn(30, 40), torch.full((30,), 41)),
    "multilabel": lambda: F.multilabel_margin_loss(randn(30, 40), torch.full((30, 40), 41)),
    "multilabel end": lambda: F.multilabel_margin_loss(randn(30, 40), torch.full((30, 40), -1)),
    "embedding_bag": lambda: F.embedding_bag(tensor([3, 31]), randn(30, 40), tensor([0])),
    "embedding_bag max": lambda: F.embedding_bag(
        tensor([3, -1]), randn(30, 40), tensor([0]), mode="max"
    ),
    "embedding_bag double": lambda: F.embedding_bag(
        tensor([3, 31]), randn(30, 40).double(), tensor([0])
    ),
    "searchsorted": lambda: torch.searchsorted(
        randn(300), randn(3), sorter=torch.full((300,), 300)
    ),
    "lu_unpack": lambda: torch.lu_unpack(randn(200, 200), torch.full((200,), 201).int()),
    "lu_solve": lambda: torch.linalg.lu_solve(torch.eye(2), tensor([3, 4]).int(), torch.ones(2, 1)),
    "lu_solve of zero": lambda: torch.linalg.lu_solve(
        torch.eye(2), tensor([0, 4]).int(), torch.ones(2, 1)
    ),
    "computed index": lambda: randn(30)[(torch.arange(9) * 2).clamp(max=80) + 15],
    "drawn index": lambda: randn(30)[torch.randint(31, 90, (5,))],
    "max_unpool2d": lambda: F.max_unpool2d(randn(1, 10, 4, 4), torch.full((1, 10, 4, 4), 99), 2),
}

FACTORED: dict[str, Callable[[], Any]] = {
    "cholesky": lambda: torch.linalg.cholesky(tensor([[-1.0]])),
    "inv": lambda: torch.linalg.inv(torch.zeros(2, 2)),
    "inverse": lambda: torch.inverse(torch.zeros(2, 2)),
    "solve": lambda: torch.linalg.solve(torch.zeros(2, 2), torch.ones(2, 1)),
    "lu_factor": lambda: torch.linalg.lu_factor(torch.zeros(2, 2)),
    "matrix_power": lambda: torch.linalg.matrix_power(torch.zeros(2, 2), -1),
    "eigh": lambda: torch.linalg.eigh(torch.full((2, 2), float("nan"))),
    "regular": lambda: torch.linalg.inv(torch.eye(2)),
    "one_hot": lambda: F.one_hot(tensor([3]), 2),
    "one_hot negative": lambda: F.one_hot(tensor([-1])),
    "one_hot negative of four": lambda: F.one_hot(tensor([-1]), 4),
    "one_hot of no class": lambda: F.one_hot(torch.zeros(0, dtype=torch.int64)),
}


def outcome_of(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except Exception as error:
            return type(error), str(error)
    return None


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", [*INDEXED, *FACTORED])
def test_as_eager(name: str, mode: Callable[[], Any]) -> None:
    """At the first call and at the second, which the cache could have answered."""
    call = (INDEXED | FACTORED)[name]
    torch.manual_seed(0)
    eager = [outcome_of(call), outcome_of(call)]
    torch.manual_seed(0)
    with mode():
        assert [outcome_of(call), outcome_of(call)] == eager


def test_real_index() -> None:
    fake, index = fake_like(torch.zeros(300)), tensor([300])
    for _ in range(2):
        with pytest.raises(IndexError, match="index 300 is out of bounds"):
            fake[index]
        with fake_mode(), pytest.raises(IndexError, match="index 300 is out of bounds"):
            fake[index]
    assert fake[tensor([299])].shape == (1,)


def test_after_an_unknown_index() -> None:
    """The recipe of an unknown index does not serve a known one, nor the other way round."""
    with fake_mode():
        table, unknown = randn(300), (randn(4000) * 7).to(torch.int64)
        for _ in range(3):
            table[unknown]
        with pytest.raises(IndexError):
            table[torch.full((4000,), 300)]
        assert table[torch.zeros(4000, dtype=torch.int64)].shape == table[unknown].shape


@pytest.mark.parametrize("sizes", [(3,), (2, 3), ()])
@pytest.mark.parametrize("num_classes", [-1, 9])
def test_one_hot(sizes: tuple[int, ...], num_classes: int) -> None:
    def encoded() -> torch.Tensor:
        return F.one_hot(torch.full(sizes, 5), num_classes)

    eager = encoded()
    with fake_mode():
        found = encoded()
    assert (found.stride(), found.dtype) == (eager.stride(), eager.dtype)
    assert found.tolist() == eager.tolist()


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float32], ids=str)
def test_a_mask_over_drawn_numbers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Trials on tensors of ones read index 1, which a dim of size 1 does not have."""
    for seed in range(8):
        torch.manual_seed(seed)
        expected = drawn_without_zeros(shape, dtype)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        with deferred_mode():
            tensor = drawn_without_zeros(shape, dtype)
            assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(materialize_tensor(tensor), expected)


def drawn_without_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = torch.randint(0, 2, shape).to(dtype)
    x[x == 0] = 1
    return x + torch.rand(()).to(dtype)
