"""Values follow writes through views, and unknown writes forget them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import unknown
from torchfake import fake_mode
from torchfake.errors import UnknownValueError


def _write_slice(t: Tensor) -> None:
    t[1:] = 7


def _write_mask(t: Tensor) -> None:
    t[t > 2] = 0


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "slice": _write_slice,
    "mask": _write_mask,
    "view": lambda t: t.view(-1).add_(1),
    "transposed": lambda t: t.t().mul_(torch.arange(2)),
    "detach": lambda t: t.detach().zero_(),
    "data": lambda t: t.data.fill_(2),
    "diagonal": lambda t: t.diagonal().copy_(torch.tensor([5, 6])),
    "index_put": lambda t: t.index_put_((torch.tensor([0]), torch.tensor([1])), torch.tensor(9)),
    "out": lambda t: torch.add(t, t, out=t[:]),
    "foreach": lambda t: torch._foreach_add_([t[0], t[1]], 3),
    "chunk": lambda t: t.chunk(2)[1].neg_(),
    "resize": lambda t: t.resize_(2).add_(1),
    "setitem_0": lambda t: t.__setitem__(0, torch.tensor([4, 4, 4])),
    "masked_fill": lambda t: t.masked_fill_(t > 3, -1),
    "index_fill": lambda t: t.index_fill_(1, torch.tensor([0]), 8),
}


@pytest.mark.parametrize("name", WRITES)
def test_values_follow_writes_through_views(name: str) -> None:
    def program() -> list[Any]:
        base = torch.arange(6).view(2, 3)
        column = base[:, 1]
        copy = base.clone()
        WRITES[name](base)
        return [base.tolist(), column.tolist(), copy.tolist(), base._version]

    expected = program()
    with fake_mode():
        assert program() == expected


UNKNOWN_WRITES: dict[str, Callable[[Tensor], Any]] = {
    "fill": lambda t: t.copy_(unknown(2, 3)),
    "part": lambda t: t[0].copy_(unknown(3)),
    "add": lambda t: t.add_(unknown(3)),
    "copy": lambda t: t.view(-1)[:2].copy_(unknown(2)),
    "setitem": lambda t: t.__setitem__((0, 0), unknown(3)[0]),
    "out": lambda t: torch.mul(t, unknown(3), out=t),
    "foreach": lambda t: torch._foreach_mul_([t], [unknown(3)]),
    "index_put": lambda t: t.index_put_((torch.tensor([0]),), unknown(3)),
    "data": lambda t: t.data.copy_(unknown(2, 3)),
    "storage_copy": lambda t: t.untyped_storage().copy_(unknown(6).untyped_storage()),
    "storage_resize": lambda t: t.untyped_storage().resize_(0),
    "growth": lambda t: t.resize_(9),
}


@pytest.mark.parametrize("name", UNKNOWN_WRITES)
def test_unknown_writes_forget_in_every_view(name: str) -> None:
    with fake_mode():
        base = torch.zeros(2, 3)
        view, copy = base[1], base.clone()
        UNKNOWN_WRITES[name](base)
        for fake in (base, view):
            with pytest.raises(UnknownValueError):
                fake.tolist()
        assert copy.tolist() == [[0.0] * 3] * 2


def test_writes_of_a_storage_are_known() -> None:
    for change in (lambda s: s.fill_(1), lambda s: s.__setitem__(3, 64)):
        expected = torch.zeros(2, 3)
        with fake_mode():
            fake = torch.zeros(2, 3)
            row = fake[0]
        for tensor in (expected, fake):
            change(tensor.untyped_storage())
        assert fake.tolist() == expected.tolist()
        assert row.tolist() == expected[0].tolist()


def test_a_whole_write_is_known_again() -> None:
    with fake_mode():
        table = unknown(2, 3)
        row = table[1]
        table.copy_(torch.arange(6).view(2, 3))
        assert row.tolist() == [3.0, 4.0, 5.0]
        table.copy_(unknown(2, 3))
        table.zero_()
        assert row.tolist() == [0.0, 0.0, 0.0]
        row.copy_(unknown(3))
        table[0].zero_()  # part of what is unknown
        with pytest.raises(UnknownValueError):
            table[0].tolist()


def test_uninitialized_memory() -> None:
    """Integers begin as zeros, so that tables filled part by part are known; floats do not."""
    with fake_mode():
        table = torch.empty(3, dtype=torch.int64)
        table[1:] = torch.tensor([4, 5])
        assert table.tolist() == [0, 4, 5]
        for fake in (torch.empty(3), torch.empty_like(torch.ones(2)), torch.ones(1).new_empty(2)):
            with pytest.raises(UnknownValueError):
                fake.tolist()


def test_float_copies_on_other_devices_keep_their_value() -> None:
    with fake_mode(fake_cuda=2):
        fake = torch.linspace(0, 1, 3).to("cuda:1").half().cpu()
        assert fake.tolist() == [0.0, 0.5, 1.0]


def out_of(function, *args):
    out = torch.zeros(2, 1, dtype=torch.int64)
    assert function(*args, out=out) is out
    return out.tolist()


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_of_operators_that_read_values():
    def program():
        x = torch.tensor([1, 0, 1])
        return out_of(torch.nonzero, x), out_of(torch.masked_select, x, x > 0)

    expected = program()
    with fake_mode():
        assert program() == expected
