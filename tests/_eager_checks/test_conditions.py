"""Lengths, counts, probabilities and divisors of known value that eager's kernels refuse are
refused at once, with eager's error, in deferred modes too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import randn, tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from tests._eager_checks.test_indices import outcome_of
from torchfake import deferred_mode, fake_mode
from torchfake.errors import ReplayError


def _ctc(
    lengths: Any, of_targets: Any, targets: tuple[int, ...] = (16, 30), **options: Any
) -> torch.Tensor:
    given = [torch.full((16,), n) if isinstance(n, int) else n for n in (lengths, of_targets)]
    return F.ctc_loss(
        randn(50, 16, 20).log_softmax(2), torch.ones(targets).long(), *given, **options
    )


def _bags(offsets: list[int], mode: str = "mean", **options: Any) -> torch.Tensor:
    indices = torch.randint(0, 30, (200,))
    return F.embedding_bag(indices, randn(30, 40), tensor(offsets), mode=mode, **options)


def _segments(size: tuple[int, ...], axis: int = 0, **given: Any) -> torch.Tensor:
    return torch.segment_reduce(randn(size), "sum", axis=axis, **given)


CALLS: dict[str, Callable[[], Any]] = {
    "ctc_loss": lambda: _ctc(50, 10),
    "ctc_loss input too long": lambda: _ctc(51, 10),
    "ctc_loss inputs in a list": lambda: _ctc([51] * 16, [10] * 16),
    "ctc_loss negative input": lambda: _ctc(-1, 10),
    "ctc_loss target too long": lambda: _ctc(50, 31),
    "ctc_loss negative target": lambda: _ctc(50, -1),
    "ctc_loss targets in a row": lambda: _ctc(50, 10, (100,)),
    "ctc_loss number of lengths": lambda: _ctc(torch.full((15,), 50), 10),
    "ctc_loss batch of targets": lambda: _ctc(50, 10, (15, 30)),
    "ctc_loss blank": lambda: _ctc(50, 10, blank=20),
    "ctc_loss float lengths": lambda: _ctc(torch.full((16,), 50.0), 10),
    "put": lambda: randn(100).put_(tensor([1, -2]), randn(2)),
    "put of too many": lambda: randn(100).put(tensor([1, -2]), randn(3)),
    "put_ of too few": lambda: randn(100).put_(tensor([1, -2]), randn(1)),
    "put_ beyond": lambda: randn(100).put_(tensor([1, 100]), randn(2)),
    "segments": lambda: _segments((100,), lengths=tensor([60, 40])),
    "segments too short": lambda: _segments((100,), lengths=tensor([3, 3])),
    "segments negative": lambda: _segments((100,), lengths=tensor([103, -3])),
    "segments unsafe": lambda: _segments((100,), lengths=tensor([3, 3]), unsafe=True),
    "segments of rows": lambda: _segments((5, 100), 1, lengths=torch.full((5, 2), 49)),
    "segments by offsets": lambda: _segments((100,), offsets=tensor([0, -3, 100])),
    "bags from one": lambda: _bags([1, 5]),
    "bags too long": lambda: _bags([0, 201]),
    "bags negative": lambda: _bags([0, -1]),
    "bags beyond": lambda: _bags([0, 300, 100], "max"),
    "bags with the last offset": lambda: _bags([0, 5, 199], include_last_offset=True),
    "masked_scatter": lambda: randn(300).masked_scatter(torch.ones(300).bool(), randn(3)),
    "masked_scatter_": lambda: randn(300).masked_scatter_(torch.ones(300).bool(), randn(3)),
    "masked_scatter broadcast": lambda: randn(9, 9).masked_scatter(torch.ones(9).bool(), randn(80)),
    "masked_scatter enough": lambda: randn(9, 9).masked_scatter(torch.ones(9).bool(), randn(81)),
    "mask written": lambda: randn(300).__setitem__(torch.ones(300).bool(), randn(3)),
    "mask and index written": lambda: randn(4, 300).__setitem__(
        (tensor([True, False, True, False]), tensor([3, 4])), randn(3)
    ),
    "mask written by one": lambda: randn(300).__setitem__(torch.ones(300).bool(), randn(1)),
    "floor_divide": lambda: torch.randint(1, 5, (300_000,)) // tensor([0]),
    "floor_divide of known": lambda: tensor([1]) // tensor([0]),
    "floor_divide of floats": lambda: randn(300) // tensor([0.0]),
    "floor_divide of nothing": lambda: torch.ones(0).long() // tensor([0]),
    "remainder": lambda: torch.randint(1, 5, (300_000,)) % tensor([0]),
    "fmod_": lambda: torch.randint(1, 5, (300_000,)).fmod_(tensor([0])),
    "div that rounds": lambda: torch.div(tensor([1]), tensor([0]), rounding_mode="floor"),
    "div": lambda: torch.div(tensor([1]), tensor([0])),
    "binary_cross_entropy": lambda: F.binary_cross_entropy(torch.full((300,), -2.0), randn(300)),
    "binary_cross_entropy target": lambda: F.binary_cross_entropy(
        torch.rand(300), torch.full((300,), 2.0)
    ),
    "assertion": lambda: torch._assert_async(tensor(0)),
    "assertion with a text": lambda: torch._assert_async(tensor(False), "no"),
    "quantile": lambda: torch.quantile(randn(300), tensor([1.5])),
    "nanquantile": lambda: torch.nanquantile(randn(300), tensor([-0.5])),
    "kthvalue of nothing": lambda: torch.kthvalue(torch.ones(0), 1),
    "mode of nothing": lambda: torch.mode(torch.ones(3, 0)),
    "packed": lambda: pack_padded_sequence(randn(30, 4, 10), tensor([9, 9, 9, 3])),
    "packed without steps": lambda: pack_padded_sequence(randn(30, 4, 10), tensor([9, 9, 9, 0])),
    "packed not sorted": lambda: pack_padded_sequence(randn(30, 4, 10), tensor([9, 9, 3, 9])),
    "packed batch": lambda: pack_padded_sequence(randn(30, 4, 10), tensor([9, 9, 3])),
    "packed nothing": lambda: pack_padded_sequence(randn(30, 0, 10), torch.ones(0).long()),
    "packed too long": lambda: pack_padded_sequence(randn(3, 4, 10), tensor([4, 4, 3, 1])),
}

COMPUTED: dict[str, Callable[[], Any]] = {
    "inv_ex": lambda: torch.linalg.inv_ex(torch.zeros(2, 2), check_errors=True),
    "solve_ex": lambda: torch.linalg.solve_ex(torch.zeros(2, 2), randn(2, 1), check_errors=True),
    "cholesky_ex": lambda: torch.linalg.cholesky_ex(-torch.eye(2), check_errors=True),
    "cholesky_ex unchecked": lambda: torch.linalg.cholesky_ex(-torch.eye(2)),
    "svd": lambda: torch.linalg.svd(torch.full((2, 2), float("nan"))),
    "pinv": lambda: torch.linalg.pinv(torch.full((2, 2), float("nan"))),
    "matrix_rank": lambda: torch.linalg.matrix_rank(torch.full((2, 2), float("nan"))),
    "eig": lambda: torch.linalg.eig(torch.full((2, 2), float("nan"))),
    "ldl_solve": lambda: torch.linalg.ldl_solve(torch.eye(2), tensor([3, 3]).int(), randn(2, 1)),
    "cholesky_inverse": lambda: torch.cholesky_inverse(torch.zeros(2, 2)),
    "histc": lambda: torch.histc(tensor([1.0, float("inf")])),
    "histogram": lambda: torch.histogram(tensor([float("nan")]), 4),
    "fake_quantize": lambda: torch.fake_quantize_per_channel_affine(
        randn(3, 4), torch.ones(3), torch.full((3,), 300).int(), 0, 0, 255
    ),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", [*CALLS, *COMPUTED])
def test_as_eager(name: str, mode: Callable[[], Any]) -> None:
    """At the first call and at the second, which the cache could have answered."""
    call = (CALLS | COMPUTED)[name]
    eager = outcome_of(call)
    with mode():
        assert outcome_of(call) == eager
        assert outcome_of(call) == eager


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_second_divisor(mode: Callable[[], Any]) -> None:
    """A recipe of a divisor without zeros does not serve one with a zero."""
    with mode():
        numbers = torch.randint(1, 5, (300_000,))
        for _ in range(3):
            numbers // tensor([2])
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            numbers // tensor([0])


def test_expensive_values_are_not_computed() -> None:
    """In a deferred mode an index that follows from large tensors is left to the replay."""
    with deferred_mode():
        chosen = randn(1000, 1000).argmax(0)
        selected = randn(300)[chosen]
    with pytest.raises(ReplayError, match="out of bounds"):
        selected.tolist()
