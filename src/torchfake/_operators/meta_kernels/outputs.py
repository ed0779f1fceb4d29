"""What ``out=`` tensors are after a call: their sizes and strides.

Input: an operator with ``out=``, the function that makes what it writes there, and plain meta
tensors. Output: the ``out=`` tensors. Invariant: one that has the size of the result keeps its
strides, unless its kernel resizes it twice.

Structured kernels resize ``out=`` and give it the strides of a new result (``set_output``). A
composition does what its parts do. Every other kernel resizes its ``out=`` itself, which makes it
contiguous (``resize_output`` in aten/src/ATen/native/Resize.cpp), and fills or copies to it, but
for the kinds that `_stride_left` tells apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._core.metadata import contiguous_stride
from torchfake._operators import result_strides
from torchfake._torch import cpp_metadata

aten = torch.ops.aten
_Kernel = Callable[..., Any]
_Size = tuple[int, ...]


def functional_of(func: Any) -> Any:
    """The overload that makes what `func` writes into its ``out=``, if it does."""
    schema = func._schema
    if not any(argument.is_out for argument in schema.arguments):
        return None
    packet = func.overloadpacket
    inputs = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for name in packet.overloads():
        other = getattr(packet, name)
        if [(a.name, str(a.type)) for a in other._schema.arguments] == inputs:
            return other  # which may write what is no ``out=``: statistics of batch norm
    return None


def resizes_itself(func: Any) -> bool:
    """Whether the kernel of an operator with ``out=`` resizes it by code of its own."""
    functional = functional_of(func)
    if cpp_metadata.is_structured(functional):
        return not cpp_metadata.has_meta_kernel(func)
    return cpp_metadata.has_kernel_of_cpu(func) or not cpp_metadata.has_meta_kernel(func)


def resize_as_eager(func: Any, make: _Kernel, *args: Any, **kwargs: Any) -> Any:
    """Resize the ``out=`` tensors as the kernel of `func` does, which is not run on meta."""
    made = _made_for_outputs(func, make, args, kwargs)
    if func is aten.native_batch_norm.out and not args[5]:  # no statistics are written in eval
        made = {"out": made["out"], **{n: kwargs[n] for n in ("save_mean", "save_invstd")}}
    strides = {n: _stride_left(func, args, kwargs, n, new) for n, new in made.items()}
    for name, new in made.items():
        out = kwargs[name]
        aten._resize_output_.default(out, new.shape, out.device)
        out.as_strided_(new.shape, strides[name])
    return _as_returned([kwargs[name] for name in made])


def resize_and_adopt(func: Any, make: _Kernel, *args: Any, **kwargs: Any) -> Any:
    """Run `func` on meta, and give what it resizes the strides of a new result."""
    made = _made_for_outputs(func, make, args, kwargs)
    wanted = []
    for name, new in made.items():
        out = kwargs[name]
        like = out if out.shape == new.shape else new
        wanted.append((out, new.shape, like.stride()))
    func(*args, **kwargs)
    for out, shape, stride in wanted:
        out.as_strided_(shape, stride)
    return _as_returned([out for out, _, _ in wanted])


def _made_for_outputs(func: Any, make: _Kernel, args: Any, kwargs: Any) -> dict[str, Any]:
    """New results by the names of the ``out=`` that they are for."""
    names = [argument.name for argument in func._schema.arguments if argument.is_out]
    rest = {name: value for name, value in kwargs.items() if name not in names}
    made = make(*args, **rest)
    return dict(zip(names, made if isinstance(made, tuple) else (made,), strict=True))


def _as_returned(outs: list[Any]) -> Any:
    return tuple(outs) if len(outs) > 1 else outs[0]


def _stride_left(func: Any, args: Any, kwargs: Any, name: str, new: Any) -> _Size:
    """The strides that an ``out=`` has after the call, whose result without it is `new`."""
    out, size = kwargs[name], tuple(new.shape)
    if func in _RESIZED_TWICE and new.dim() < _RESIZED_TWICE[func]:
        return contiguous_stride(size)
    if name in _WRITTEN_BY_LAPACK.get(func, ()) and not out.numel() and out.dtype == new.dtype:
        return tuple(new.stride())
    if out.shape == new.shape:
        return tuple(out.stride())
    if func in _AS_NEW:
        return tuple(new.stride())
    if func in _ALLOCATED_BY_ITERATOR and not _copies_real_part(func, args, out):
        allocated = result_strides.of_iterator(functional_of(func), args, kwargs, size)
        return allocated or contiguous_stride(size)
    return contiguous_stride(size)


_AS_NEW = (aten.linalg_solve_triangular.out, aten.addr.out)
"""Operators that resize ``out=`` to columns, or by TensorIterator with the operands expanded."""

_ALLOCATED_BY_ITERATOR = frozenset(
    {aten.abs.out, aten.angle.out, aten.complex.out, aten.conj_physical.out,
     aten.floor_divide.out, aten.frexp.Tensor_out, aten.hardswish.out, aten.hardtanh.out,
     aten.hardtanh_backward.grad_input, aten.huber_loss.out, aten.huber_loss_backward.out,
     aten.logical_and.out, aten.logical_not.out, aten.logical_or.out, aten.logical_xor.out,
     aten.logit.out, aten.mse_loss_backward.grad_input,
     aten.nan_to_num.out, aten.polar.out, aten.smooth_l1_loss_backward.grad_input,
     aten.where.self_out, aten._add_relu.out}
)  # fmt: skip
"""Operators that leave it to TensorIterator to resize ``out=``."""


def _copies_real_part(func: Any, args: Any, out: Any) -> bool:
    """UnaryOps.cpp: the kernel makes a complex result, whose real part is copied to ``out=``."""
    is_real = func in (aten.abs.out, aten.angle.out) and not out.is_complex()
    return is_real and bool(args[0].is_complex())


_WRITTEN_BY_LAPACK = {
    aten.cholesky_inverse.out: {"out"},
    aten.geqrf.a: {"a"},
    aten.linalg_eig.out: {"eigenvalues", "eigenvectors"},
    aten.linalg_eigvals.out: {"out"},
    aten.linalg_householder_product.out: {"out"},
    aten.ormqr.out: {"out"},
}
"""BatchLinearAlgebra.cpp: LAPACK writes into this ``out=`` if it is empty and of the dtype of the
result, which makes it column-major. Otherwise the result is copied to it."""

_RESIZED_TWICE = {aten.im2col.out: 3, aten.col2im.out: 4}
"""Im2Col.cpp, Col2Im.cpp: ``out=`` of one image is resized to a batch of one, and back, whatever
strides it has had. The values are the dims of a batch."""
