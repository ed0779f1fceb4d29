"""No recipe is learned from a call whose outcome depends on more than its key and guards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests._cache.conftest import assert_same_again, unknown
from torchfake import fake_mode
from torchfake._cache import cache


def test_zeros_have_a_sign() -> None:
    def program() -> list[Any]:
        zeros = [torch.full((1,), 0.0), torch.full((1,), -0.0)]
        zeros += [torch.ones(2).fill_(n) for n in (0.0, -0.0, 0)]
        return [(1 / zero).tolist() for zero in zeros]

    expected = program()
    for _ in range(3):
        with fake_mode():
            assert program() == expected


def test_nans_are_not_cached() -> None:
    with fake_mode():
        counts = []
        for _ in range(20):
            torch.full((2,), float("nan")).masked_fill(torch.tensor([True, False]), float("nan"))
            counts.append(cache.count())
    assert counts[-1] == counts[5]


def test_storages_larger_than_their_tensor() -> None:
    with fake_mode():
        for _ in range(3):
            gaps = torch.empty_strided((1000,), (50,), dtype=torch.int64)
            assert gaps._fake_storage.num_known_bytes() == gaps.untyped_storage().nbytes()
            assert torch.empty_strided((200_000,), (0,), dtype=torch.int64)[0].item() == 0


def test_outs_that_grow() -> None:
    def program() -> list[Any]:
        x = unknown(4)
        outs = [torch.empty(8)[:0], torch.empty(0), torch.empty(4)]
        for out in outs:
            torch.add(x, x, out=out)
        return [*outs, *(out.untyped_storage().nbytes() for out in outs)]

    assert_same_again(program)


def test_outs_that_overlap() -> None:
    with fake_mode():
        i, p, q = unknown(3, dtype=torch.int64), unknown(3), unknown(3)
        for _ in range(3):
            assert torch.gather(p, 0, i, out=q) is q
            with pytest.raises(RuntimeError, match="unsupported operation"):
                torch.gather(p, 0, i, out=p)


def test_default_dtype_beside_a_float() -> None:
    def program() -> list[Tensor]:
        integer, real, start = unknown(3, dtype=torch.int64), unknown(3), torch.tensor(0.0)
        made = []
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            made += [*torch._foreach_add([integer, real], 1.5), torch.linspace(start, start + 1, 3)]
            made += torch._foreach_sqrt([real, integer])
        torch.set_default_dtype(torch.float32)
        return made

    assert_same_again(program)


def test_known_values_where_the_host_has_no_kernel() -> None:
    with fake_mode(fake_cuda=True):
        for _ in range(3):
            x = torch.tensor([1.0, 2.0], device="cuda").to(torch.float8_e4m3fn)
            assert x.sqrt_() is x
            torch._foreach_add_([torch.ones(2, device="cuda").to(torch.float8_e4m3fn)], 1)
            assert torch.ones(3).pin_memory().tolist() == [1.0, 1.0, 1.0]


def test_copies_of_a_whole_storage() -> None:
    def program() -> list[Any]:
        sources = (unknown(4), unknown(10)[:4])
        made = [torch.as_strided_scatter(x, unknown(2), (2,), (1,)) for x in sources]
        return [t.untyped_storage().nbytes() for t in made]

    assert_same_again(program)


def test_errors_of_values_are_raised_at_once() -> None:
    with fake_mode():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                torch.div(torch.arange(1, 4), 0, rounding_mode="floor")
            square = torch.arange(9.0).view(3, 3)
            with pytest.raises(RuntimeError, match="unsupported operation"):
                square.add_(square.t())
