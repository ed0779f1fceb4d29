"""Meta kernels of decompositions and products.

Input: meta tensors. Output: results of the shapes, dtypes and strides that eager gives. Invariant:
no values are read and no real kernel runs; each docstring names the C++ file that is followed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfake._operators.meta_kernels.register import (
    MetaKernel,
    register_meta_kernel,
    replacement_for,
)
from torchfake._torch import zero_tensors

aten = torch.ops.aten


def _column_major(tensor: Tensor, shape: Any) -> Tensor:
    """An empty tensor like `tensor` whose last two dims are column-major, as LAPACK's are."""
    *batch, rows, columns = shape
    return tensor.new_empty((*batch, columns, rows)).mT


@register_meta_kernel(aten.geqrf.default)
def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    """aten/src/ATen/native/BatchLinearAlgebra.cpp, geqrf_out_helper."""
    tau = a.new_empty((*a.shape[:-2], min(a.shape[-2:])))
    return _column_major(a, a.shape), tau


@register_meta_kernel(aten.addmv.default, devices=("cpu",))
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """aten/src/ATen/native/Blas.cpp: of a matrix without elements, the result is that of a product
    of numbers, and has the size of `self`, unless `beta` is 0.
    """
    result: Tensor = aten.addmv.default(self, mat, vec, beta=beta, alpha=alpha)
    return result if mat.numel() or beta == 0 else self.new_empty(self.shape)


@register_meta_kernel(aten.linalg_lstsq.default)
def lstsq(
    a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """BatchLinearAlgebra.cpp, linalg_lstsq_out: residuals are those of a matrix of full rank."""
    rows, columns = a.shape[-2:]
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    batch = torch.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    driver = driver or ("gels" if a.is_cuda else "gelsy")
    solution = _column_major(a, (*batch, max(rows, columns), right.shape[-1]))
    solution = solution.narrow(-2, 0, columns)
    has_residuals = rows > columns and driver != "gelsy"
    real = a.dtype.to_real() if a.dtype.is_complex else a.dtype
    residuals = a.new_empty((*batch, right.shape[-1]) if has_residuals else (0,), dtype=real)
    has_rank = driver != "gels"
    rank = a.new_empty(a.shape[:-2] if has_rank else (0,), dtype=torch.int64)
    has_singular = driver in ("gelsd", "gelss")
    singular = a.new_empty(
        (*a.shape[:-2], min(rows, columns)) if has_singular else (0,), dtype=real
    )
    return solution.squeeze(-1) if is_vector else solution, residuals, rank, singular


@register_meta_kernel(aten._linalg_solve_ex.default)
def solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """BatchLinearAlgebra.cpp, _linalg_solve_ex_out: if not `left`, a lazy conjugate."""
    solution, *rest = aten._linalg_solve_ex.default(a, b, left=left, check_errors=check_errors)
    if not left and solution.is_complex() and solution.numel():
        solution = solution.conj()
    return solution, *rest


@register_meta_kernel(aten.linalg_lu_solve.default)
def lu_solve(*args: Any, **kwargs: Any) -> Tensor:
    """BatchLinearAlgebra.cpp, linalg_lu_solve_out: a lazy conjugate if not `left`, as in torch's
    Python; C++ leaves that to the kernel.
    """
    result: Tensor = aten.linalg_lu_solve.default(*args, **kwargs)
    return result


@register_meta_kernel(aten.linalg_matrix_exp.default)
def matrix_exp(a: Tensor) -> Tensor:
    """aten/src/ATen/native/LinearAlgebra.cpp: the batch is viewed as one dim, or refused."""
    result: Tensor = aten.linalg_matrix_exp.default(a)
    if a.dim() > 2 and a.shape[-1] > 1:
        a.view(-1, *a.shape[-2:])
    return result


def _dot_with_zeros(func: Any) -> MetaKernel:
    """aten/src/ATen/native/Blas.cpp: a product with a zero tensor is a zero tensor."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = func(a, b)
        if not zero_tensors.is_zero_tensor(a) and not zero_tensors.is_zero_tensor(b):
            return result
        return zero_tensors.zero_tensor((), (), 0, result.dtype, result.device)

    return kernel


@register_meta_kernel(aten._grouped_mm.default)
def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """aten/src/ATen/native/GroupedMMUtils.h: rows are padded to 16 bytes. Any dtype is
    accepted: dtypes without a kernel have a fallback.
    """
    groups = (offs.shape[0],) if offs is not None and a.dim() == b.dim() == 2 else ()
    batch = a.shape[:1] if a.dim() == b.dim() == 3 else groups
    rows, columns = a.shape[-2], b.shape[-1]
    alignment = 16 // a.element_size()
    width = -(-columns // alignment) * alignment
    padded = a.new_empty((*batch, rows, width), dtype=out_dtype or a.dtype)
    return padded[..., :columns]


register_meta_kernel(aten.dot.default)(_dot_with_zeros(aten.dot.default))
register_meta_kernel(aten.vdot.default)(_dot_with_zeros(aten.vdot.default))


@register_meta_kernel(aten._weight_int4pack_mm.default)
def weight_int4pack_mm(
    x: torch.Tensor, weight: torch.Tensor, group_size: int, scales_and_zeros: torch.Tensor
) -> torch.Tensor:
    """aten/src/ATen/native/cuda/int4mm.cu: weights are [n / 8, k / (16 * tiles), 32, tiles / 2].
    Torch's meta kernel reads an attribute of the weight that only torch's fakes have (2.13).
    """
    torch._check(x.dim() == 2 and weight.dim() == 4, lambda: "x must be 2D and weight 4D")
    torch._check(weight.dtype == torch.int32, lambda: f"weight must be int32, not {weight.dtype}")
    return x.new_empty(x.shape[0], weight.shape[0] * 8)


def _into_outputs(overload: Any, device_type: str) -> MetaKernel:
    """aten/src/ATen/native/BatchLinearAlgebra.cpp: a resized ``out=`` tensor has the strides of a
    new result, any other keeps its own; torch's meta kernels make both contiguous (2.12 to 2.15).
    Structured kernels refuse an ``out=`` tensor of another dtype than the result's.
    """
    names = [argument.name for argument in overload._schema.arguments if argument.is_out]
    functional = getattr(aten, overload._schema.name.removeprefix("aten::")).default
    checks_dtypes = overload in _STRUCTURED

    def kernel(*args: Any, **kwargs: Any) -> Any:
        rest = {name: value for name, value in kwargs.items() if name not in names}
        made = (replacement_for(functional, device_type) or functional)(*args, **rest)
        news = made if isinstance(made, tuple) else (made,)
        wanted = []
        for tensor, new in zip((kwargs[name] for name in names), news, strict=False):
            torch._check(
                not checks_dtypes or tensor.dtype == new.dtype,
                lambda new=new, tensor=tensor: (
                    f"Expected out tensor to have dtype {new.dtype}, but got {tensor.dtype} instead"
                ),
            )
            source = tensor if tensor.shape == new.shape else new
            wanted.append((tensor, tuple(source.shape), source.stride()))
        result = overload(*args, **kwargs)
        for tensor, shape, stride in wanted:
            tensor.as_strided_(shape, stride)
        return result

    return kernel


_STRUCTURED = frozenset(
    {aten._linalg_solve_ex.result, aten.linalg_ldl_factor_ex.out, aten.linalg_lu_factor_ex.out}
)
for _overload in (
    *_STRUCTURED, aten._linalg_eigh.eigenvalues, aten.linalg_ldl_solve.out,
    aten.linalg_lu_solve.out, aten.linalg_qr.out,
):  # fmt: skip
    for _type in ("cpu", "cuda"):
        register_meta_kernel(_overload, devices=(_type,))(_into_outputs(_overload, _type))
