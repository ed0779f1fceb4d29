"""Building a result from a recipe runs no kernel; aliases, versions and values equal eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests._cache.conftest import KernelRanError, Program, unknown
from tests.conftest import describe
from torchfake import fake_mode
from torchfake.errors import UnknownValueError

# Hits.

HITS: dict[str, Program] = {
    "add": lambda: unknown(4, 4) + unknown(4, 4),
    "scalar": lambda: unknown(4) * 2.5,
    "product": lambda: unknown(2, 3) @ unknown(3, 4),
    "empty": lambda: torch.empty(3, 4, dtype=torch.float64, device="cpu"),
    "empty_strided": lambda: torch.empty_strided((2, 3), (1, 2)),
    "view": lambda: unknown(4, 4).view(16),
    "views": lambda: unknown(6, 4).split(2),
    "view by strides": lambda: unknown(20).as_strided((3, 3), (2, 1), 1),
    "sum of other strides": lambda: unknown(7).as_strided((1, 4), (7, 1)) + unknown(1, 4),
    "several": lambda: unknown(5, 4).max(dim=1),
    "list": lambda: torch.cat([unknown(2, 3), unknown(4, 3)]),
    "in place": lambda: unknown(3).add_(unknown(3)),
    "fill": lambda: unknown(100_000).zero_(),
    "small fill": lambda: unknown(4).fill_(2.0),
    "zeros": lambda: torch.zeros(4, 5),
    "random": lambda: [unknown(7).normal_(0.0, 0.02), unknown(7).uniform_(-1.0, 1.0)],
    "metadata in place": lambda: unknown(2, 3).t_().unsqueeze_(0),
    "no bias": lambda: F.conv2d(unknown(1, 3, 8, 8), unknown(4, 3, 3, 3)),
    "norm": lambda: F.layer_norm(unknown(2, 8), (8,)),
    "index": lambda: unknown(5, 4)[unknown(3, dtype=torch.int64)],
    "foreach": lambda: torch._foreach_add([unknown(2), unknown(3)], 1.0),
    "foreach in place": lambda: torch._foreach_mul_([unknown(2), unknown(3)], 2.0),
    "parameter": lambda: nn.Parameter(torch.empty(4)),
    "conjugate": lambda: unknown(3, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("program", HITS.values(), ids=HITS)
def test_a_hit_runs_no_kernel(program: Program, forbid_kernels: Callable[[], None]) -> None:
    expected = describe(program())
    with fake_mode():
        assert describe(program()) == expected
        forbid_kernels()
        assert describe(program()) == expected


def test_a_kernel_that_runs_is_noticed(forbid_kernels: Callable[[], None]) -> None:
    forbid_kernels()
    with fake_mode(), pytest.raises(KernelRanError):
        unknown(3)


def test_backward_hits(forbid_kernels: Callable[[], None]) -> None:
    with fake_mode():
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
        x = torch.empty(3, 4)
        model(x).sum().backward()
        model.zero_grad()
        forbid_kernels()
        model(x).sum().backward()
    assert [p.grad.shape for p in model.parameters()] == [p.shape for p in model.parameters()]


# Aliases and writes.


def test_results_alias_the_argument_of_this_call() -> None:
    with fake_mode():
        bases = [unknown(4, 4) for _ in range(3)]
        views = [base.view(16)[2:].as_strided((2,), (1,)) for base in bases]
    for base, view in zip(bases, views, strict=True):
        assert view._fake_storage is base._fake_storage
        assert view._base is base


def test_arguments_that_overlap() -> None:
    """Recipes learned from separate arguments are right for overlapping ones, and vice versa."""

    def program() -> list[Tensor]:
        x, y = torch.zeros(4), torch.ones(4)
        x.add_(y)
        x.add_(x)
        y.add_(x)
        x.mul_(x.view(4))
        return [x, y]

    expected = [t.tolist() for t in program()]
    for _ in range(3):
        with fake_mode():
            assert [t.tolist() for t in program()] == expected


def test_same_metadata_different_argument() -> None:
    """An operation that returns an argument returns its own, not another of equal metadata."""
    with fake_mode():
        x, y = unknown(3), unknown(3)
        for first, second in ((x, y), (y, x), (x, x), (x, y)):
            assert first.add_(second) is first
            out = unknown(3)
            assert torch.add(first, second, out=out) is out


def test_versions_are_counted() -> None:
    def program() -> list[int]:
        weights = [torch.empty(2), torch.empty(3)]
        view = weights[0].view(1, 2)
        torch._foreach_add_(weights, 1.0)
        weights[1].normal_()
        weights[0].t_()
        return [t._version for t in (*weights, view)]

    expected = program()
    for _ in range(3):
        with fake_mode():
            assert program() == expected


def test_storages_of_other_sizes() -> None:
    """A result that depends on the size of the storage is computed anew for each call."""
    with fake_mode():
        for length in (4, 100, 4):
            x = unknown(length)[:4]
            fits = length == 100
            for ask in (lambda x=x: x.as_strided((50,), (1,)),):
                if fits:
                    assert ask().shape == (50,)
                else:
                    with pytest.raises(RuntimeError, match="out of bounds"):
                        ask()
            x = unknown(length)[:4]
            x.resize_(6)
            assert x.untyped_storage().nbytes() == max(length, 6) * 4


# Values.


def test_values_of_hits() -> None:
    def program() -> list[Any]:
        x = torch.zeros(4)
        x[1:].fill_(2.0)
        y = torch.ones(4)
        y.zero_()
        z = torch.full((2,), 7)
        w = torch.arange(4)
        w += z[0]
        u = torch.zeros(3, dtype=torch.int32).fill_(True)
        return [t.tolist() for t in (x, y, z, w, u, x + y, torch.stack([x, y]).sum(0))]

    expected = program()
    for _ in range(4):
        with fake_mode():
            assert program() == expected


def test_unwritten_integers_begin_as_zeros() -> None:
    """Uninitialized integers are known to be zero and floats are unknown, in hits and misses."""
    with fake_mode():
        unread = unknown(3, dtype=torch.int64)
        for _ in range(3):
            made = [torch.empty_like(unread), unread.new_empty(3)]
            made[0][1] = 4
            assert [t.tolist() for t in made] == [[0, 4, 0], [0, 0, 0]]
            with pytest.raises(UnknownValueError):
                unread.new_empty(3, dtype=torch.float32).tolist()


def test_filled_storages_share_no_value() -> None:
    with fake_mode():
        for _ in range(3):
            a, b = torch.zeros(2), torch.zeros(2)
            a.add_(1)
            assert (a.tolist(), b.tolist()) == ([1.0, 1.0], [0.0, 0.0])


def test_filling_a_part_makes_no_value_known() -> None:
    with fake_mode():
        for _ in range(3):
            x = unknown(4)
            x[:2].zero_()
            with pytest.raises(UnknownValueError):
                x[:2].tolist()


def test_memory_added_by_resize_is_unknown() -> None:
    with fake_mode():
        for _ in range(3):
            x = torch.zeros(2)
            x.resize_(4)
            with pytest.raises(UnknownValueError):
                x.tolist()


def test_values_are_forgotten_and_known_again() -> None:
    with fake_mode():
        for _ in range(3):
            x = torch.zeros(2)
            x.copy_(unknown(2))
            with pytest.raises(UnknownValueError):
                x.tolist()
            x.fill_(3)
            assert x.tolist() == [3.0, 3.0]


def test_a_hit_has_the_source_location_of_its_call() -> None:
    lines = []
    with fake_mode():
        x = unknown(3)
        for _ in range(3):
            y = x + x
            with pytest.raises(
                UnknownValueError, match=r"aten.add.Tensor at .*test_apply.py:(\d+)"
            ):
                y.tolist()
            lines.append(y._fake_storage.source_location.line)
    assert lines[0] == lines[1] == lines[2]
