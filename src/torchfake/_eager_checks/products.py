"""The sizes of tensors to which products are added, which meta kernels compare when eager does not,
and do not compare when it does.

Input: the arguments of such an operator. Output: the :class:`Condition` that eager's kernel checks
after the sizes of the product. Invariant: no value is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchfake._core.schemas import traits_of
from torchfake._eager_checks.conditions import Condition
from torchfake._eager_checks.small_calls import error_raised

_WRITTEN = ("addmm_", "addmv_", "baddbmm_", "addr_")
PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("addmm", "addmv", "addbmm", "baddbmm", "_addmm_activation", *_WRITTEN)
)
"""Operators that add a product to a tensor, which they expand to its size; if they write the
tensor, it has to be of that size.
"""


def conditions_of_product(func: Any, named: dict[str, Any]) -> Iterator[Condition]:
    """aten/src/ATen/native/LinearAlgebra.cpp and Blas.cpp: a tensor is expanded, except to the
    product of a matrix without elements and a vector.
    """
    added, left, right = (named[argument.name] for argument in func._schema.arguments[:3])
    size = (*left.shape[:-1], *right.shape[left.dim() - 1 :])
    packet = traits_of(func).packet
    if packet.startswith("aten::addbmm"):
        size = size[1:]
    if packet == "aten::addr_":
        if left.dim() == right.dim() == 1:
            yield Condition((), lambda: _refusal_of_outer(added, left, right))
        return
    if right.dim() == 1:
        yield Condition((), lambda: _refusal_of_vector(added, left, right))
    elif left.dim() == right.dim() > 1 and _multiply(left, right):
        if packet != "aten::addmm_":
            yield Condition((), lambda: _refusal_of_size(added.shape, size))
    else:
        return
    if packet.endswith("_"):
        yield Condition((), lambda: _refusal_of_written(added.shape, size))


def _multiply(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape[-1] == right.shape[-2] and left.shape[:-2] == right.shape[:-2]


def _refusal_of_vector(added: Any, matrix: Any, vector: Any) -> Exception | None:
    dims = added.dim(), matrix.dim(), vector.dim()
    if dims[0] > 1 or dims[1:] != (2, 1):
        given = ", ".join(map(str, dims))
        return RuntimeError(f"vector + matrix @ vector expected, got {given}")
    rows, columns = matrix.shape
    if columns == len(vector) and added.numel() in (1, rows):
        return None
    if not added.dim():
        return IndexError("Dimension specified as 0 but tensor has no dimensions")
    sizes = f"input ({len(added)}), mat ({rows}x{columns}), vec ({len(vector)})"
    return RuntimeError(f"size mismatch, got {sizes}")


def _refusal_of_outer(added: Any, left: Any, right: Any) -> Exception | None:
    if added.dim() != 2:
        return RuntimeError(f"2D tensor expected, got {added.dim()}D tensor for input")
    if added.shape == (len(left), len(right)):
        return None
    own, *sizes = ([*each.shape] for each in (added, left, right))
    return RuntimeError(f"size mismatch, input: {own}, v1: {sizes[0]}, v2: {sizes[1]}")


def _refusal_of_written(own: torch.Size, size: tuple[int, ...]) -> Exception | None:
    if own == size:
        return None
    return RuntimeError(
        f"Bad in-place call: input tensor size {[*own]} and output tensor size {[*size]} should "
        "match"
    )


def _refusal_of_size(own: torch.Size, size: tuple[int, ...]) -> Exception | None:
    return error_raised(lambda: torch.empty((), device="cpu").expand(own).expand(size))
