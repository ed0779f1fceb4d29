"""Eigenvalues and singular values, for which C++ asks for vectors too if a tensor is a subclass;
ranks and products, which C++ does not write into a subclass.

Input: a call of the composite. Output: its result, by the routine of LAPACK that computes it for a
plain tensor, whose values differ in the last bits. Invariant: with a gradient, C++ decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfake._torch import autograd

aten = torch.ops.aten
Redispatch = Callable[..., Any]


def _computes_vectors(matrix: Tensor) -> bool:
    """Whether eager computes the vectors, too: for derivatives, and for tensors in ``vmap``."""
    return autograd.needs_gradient(matrix) or autograd.is_mapped(matrix)


def svdvals(redispatch: Redispatch, matrix: Tensor, driver: str | None = None) -> Tensor:
    """aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_svdvals."""
    if matrix.dim() >= 2 and not _computes_vectors(matrix):
        run = aten._linalg_svd.default
        values: Tensor = run(autocast(matrix), False, False, driver=driver)[1]
        return values
    return redispatch(matrix, driver=driver)  # type: ignore[no-any-return]


def eigvalsh(redispatch: Redispatch, matrix: Tensor, uplo: str = "L") -> Tensor:
    """aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_eigvalsh."""
    if matrix.dim() >= 2 and not _computes_vectors(matrix):
        values: Tensor = aten._linalg_eigh.default(autocast(matrix), uplo, False)[0]
        return values
    return redispatch(matrix, uplo)  # type: ignore[no-any-return]


def rank_into(functional: Any) -> Callable[..., Tensor]:
    """The kernel of an overload of ``linalg.matrix_rank`` with ``out=``, made of the one without:
    for a subclass, C++ returns a new tensor, and `out` stays as it was.
    """

    def kernel(redispatch: Redispatch, *args: Any, out: Tensor, **named: Any) -> Tensor:
        return torch.sum(functional(*args, **named).unsqueeze(-1), -1, out=out)

    return kernel


RANKS_INTO = {
    getattr(aten.linalg_matrix_rank, into): rank_into(getattr(aten.linalg_matrix_rank, functional))
    for into, functional in {
        "out": "default",
        "out_tol_tensor": "tol_tensor",
        "atol_rtol_tensor_out": "atol_rtol_tensor",
        "atol_rtol_float_out": "atol_rtol_float",
    }.items()
}


def product_into(redispatch: Redispatch, one: Tensor, other: Tensor, *, out: Tensor) -> Tensor:
    """aten/src/ATen/native/LinearAlgebra.cpp, _matmul_impl, of batches with one matrix or vector:
    C++ writes into a view of `out` if it folds the batches, and copies from it if it shares no
    memory with `out`, as it seems of a subclass.
    """
    dims = sorted((one.dim(), other.dim()))
    if not (dims[0] in (1, 2) and dims[1] > 2):
        return redispatch(one, other, out=out)  # type: ignore[no-any-return]
    if any(map(autograd.needs_gradient, (one, other, out))):
        raise RuntimeError(
            "matmul(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    product = torch.matmul(one, other)
    torch._check(
        product.dtype == out.dtype,
        lambda: f"Expected out tensor to have dtype {product.dtype}, but got {out.dtype} instead",
    )
    out = out if out.shape == product.shape else out.resize_(product.shape)
    return out.copy_(product)


def autocast(matrix: Tensor) -> Tensor:
    """The argument in float32, if autocast on the CPU is on and would cast it for the composite."""
    is_lower = matrix.dtype in (torch.bfloat16, torch.float16)
    if is_lower and matrix.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        return matrix.float()
    return matrix
