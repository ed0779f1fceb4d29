"""Strings that eager refuses are refused at once, by an error of the same type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchfake import deferred_mode, fake_mode


def ones(*size: int) -> Tensor:
    return torch.ones(*size)


def zeros(*size: int) -> Tensor:
    return torch.zeros(*size, dtype=torch.int64)


PROGRAMS: dict[str, Callable[[str, int], Any]] = {
    "div": lambda s, n: torch.div(ones(n, n), ones(n, n), rounding_mode=s),
    "div by a number": lambda s, n: torch.div(ones(n, n), 2, rounding_mode=s),
    "div_": lambda s, n: ones(n, n).div_(ones(n, n), rounding_mode=s),
    "div, integers": lambda s, n: torch.div(zeros(n), zeros(n) + 1, rounding_mode=s),
    "index_reduce": lambda s, n: ones(n, n).index_reduce(0, zeros(n), ones(n, n), s),
    "index_reduce_": lambda s, n: ones(n, n).index_reduce_(0, zeros(n), ones(n, n), s),
    "searchsorted": lambda s, n: torch.searchsorted(ones(n), ones(n), side=s),
    "searchsorted, number": lambda s, n: torch.searchsorted(ones(n), 1.0, side=s),
    "scatter": lambda s, n: torch.scatter(ones(n, n), 0, zeros(n, n), ones(n, n), reduce=s),
    "scatter_": lambda s, n: ones(n, n).scatter_(0, zeros(n, n), 2.0, reduce=s),
    "scatter_reduce": lambda s, n: torch.scatter_reduce(ones(n), 0, zeros(n), ones(n), s),
    "segment_reduce": lambda s, n: torch.segment_reduce(ones(n), s, lengths=zeros(1) + n),
    "gelu": lambda s, n: torch.nn.functional.gelu(ones(n), approximate=s),
    "gelu_backward": lambda s, n: torch.ops.aten.gelu_backward(ones(n), ones(n), approximate=s),
    "fft": lambda s, n: torch.fft.fft(ones(n, n), norm=s),
    "eigh": lambda s, n: torch.linalg.eigh(ones(n, n), UPLO=s),
    "qr": lambda s, n: torch.linalg.qr(ones(n, n), mode=s),
    "quantile": lambda s, n: torch.quantile(ones(n, n), 0.5, interpolation=s),
    "meshgrid": lambda s, n: torch.meshgrid(ones(n), ones(n), indexing=s),
    "conv2d": lambda s, n: torch.conv2d(ones(1, 1, n, n), ones(1, 1, 1, 1), padding=s),
}


def error_of(program: Callable[[str, int], Any], string: str, size: int) -> type | None:
    try:
        program(string, size)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", PROGRAMS)
def test_bad_strings_are_refused_as_in_eager(name: str) -> None:
    program = PROGRAMS[name]
    for string, size in (("bogus", 3), ("bogus", 200), ("", 3), ("SUM", 3), ("mean", 200)):
        expected = error_of(program, string, size)
        for mode in (fake_mode, deferred_mode):
            with mode():
                found = error_of(program, string, size)
            assert found is expected, (string, size, mode)


def test_good_strings_are_accepted_on_any_device() -> None:
    with fake_mode(fake_cuda=True):
        x = torch.ones(200, 200, device="cuda")
        for mode in ("trunc", "floor", None):
            assert torch.div(x, x, rounding_mode=mode).shape == (200, 200)
        with pytest.raises(RuntimeError):
            torch.div(x, x, rounding_mode="bogus")
