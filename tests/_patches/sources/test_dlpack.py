"""``torch.from_dlpack`` of a fake shares its memory, as it does in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchfake import deferred_mode, fake_mode

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.t(),
    "part": lambda x: x.t()[1:],
    "column": lambda x: x[:, :1],
    "with steps": lambda x: x[::2, ::3],
    "one element": lambda x: x[1, 1],
    "no element": lambda x: x[:0],
    "expanded": lambda x: x.expand(2, 3, 4),
    "strided": lambda x: x.as_strided((1, 2), (7, 3), 1),
}
OPTIONS = [{}, {"copy": True}, {"copy": False}, {"device": "cpu"}, {"device": "cpu", "copy": True}]


def seen(view: Callable[[Tensor], Tensor], options: dict[str, Any]) -> list[object]:
    x = torch.arange(12.0).view(3, 4)
    other = torch.from_dlpack(view(x), **options)
    known = [other.shape, other.stride(), other.tolist()]
    if view(x).is_contiguous():
        other.mul_(2)
        view(x).add_(1)
    versions = x._version, other._version, other._is_view(), other.is_leaf
    return [*known, x.tolist(), other.tolist(), *versions]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_what_is_shared_equals_eager(
    view: Callable[[Tensor], Tensor], options: dict[str, Any]
) -> None:
    expected = seen(view, options)
    for mode in (fake_mode, deferred_mode):
        with mode():
            assert seen(view, options) == expected


def test_no_value_is_needed() -> None:
    with fake_mode():
        x = torch.empty(3000, 4000)
        other = torch.from_dlpack(x.t())
        assert (other.stride(), other.data_ptr()) == ((1, 4000), x.data_ptr())


REFUSED: dict[str, Callable[[], Any]] = {
    "gradient": lambda: torch.from_dlpack(torch.ones(2, requires_grad=True)),
    "conjugate": lambda: torch.from_dlpack(torch.ones(2, dtype=torch.complex64).conj()),
    "gradient, for others": lambda: torch.ones(2, requires_grad=True).__dlpack__(),
    "conjugate, for others": lambda: torch.ones(2, dtype=torch.complex64).conj().__dlpack__(),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_dlpack_cannot_describe_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(BufferError) as expected:
        call()
    for mode in (fake_mode, deferred_mode):
        with mode(), pytest.raises(BufferError) as found:
            call()
        assert str(found.value) == str(expected.value)
