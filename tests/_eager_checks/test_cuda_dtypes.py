"""Dtypes that CUDA refuses, on fake CUDA, and those that it accepts where the CPU does not.

``worker_cuda_dtypes`` compares torch's operator database with torch's own CUDA backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchfake import deferred_mode, fake_mode


@pytest.fixture(params=[fake_mode, deferred_mode])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param(fake_cuda=True):
        yield


def matrix(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return torch.ones(*size or (2, 2), device="cuda").to(dtype)


REFUSED: list[tuple[str, torch.dtype, Callable[[torch.Tensor], Any]]] = [
    ('"addmm_cuda" {} \'Long\'', torch.int64, lambda x: x @ x),
    ('"addmm_cuda" {} \'Int\'', torch.int32, lambda x: torch.addmm(x, x, x)),
    ('"addmm_cuda" {} \'Long\'', torch.int64, lambda x: F.linear(x, x)),
    ('"baddbmm_cuda" {} \'Byte\'', torch.uint8, lambda x: x[None] @ x[None]),
    ('"addmv_impl_cuda" {} \'Long\'', torch.int64, lambda x: x @ x[0]),
    ('"dot" {} \'Long\'', torch.int64, lambda x: x[0] @ x[0]),
    ('{} \'Bool\'', torch.bool, lambda x: x @ x),
    ('{} \'Long\'', torch.int64, F.gelu),
    ('{} \'ComplexFloat\'', torch.complex64, torch.erf),
    ('{} \'Half\'', torch.float16, torch.linalg.cholesky),
    ('{} \'Float\'', torch.float32, lambda x: x & x),
    ('{} \'Long\'', torch.int64, lambda x: x.normal_()),
    ("not supported for complex", torch.complex64, lambda x: x.clamp(0)),
]  # fmt: skip


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("text", "dtype", "run"), REFUSED)
def test_dtypes_that_cuda_refuses(text: str, dtype: torch.dtype, run: Any) -> None:
    x = matrix(dtype)
    with pytest.raises((NotImplementedError, RuntimeError)) as caught:
        run(x)
    assert text.format("not implemented for") in str(caught.value)
    assert "cpu" not in str(caught.value).lower()


ACCEPTED: list[tuple[torch.dtype, Callable[[torch.Tensor], Any]]] = [
    (torch.bool, torch.abs),
    (torch.bool, torch.trace),
    (torch.bool, torch.median),
    (torch.int64, lambda x: torch.histc(x, 4, 0, 3)),
    (torch.int64, lambda x: x[:0] @ x),
    (torch.float16, lambda x: x @ x),
    (torch.float16, torch.linalg.vector_norm),
    (torch.complex64, lambda x: x.nansum()),
    (torch.int32, lambda x: F.embedding(x, matrix(torch.float32, 3, 4))),
]


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("dtype", "run"), ACCEPTED)
def test_dtypes_that_cuda_accepts(dtype: torch.dtype, run: Any) -> None:
    run(matrix(dtype))
