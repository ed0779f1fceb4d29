"""The strides of results, where torch's meta kernels give others than eager's kernels.

Input: a call, and the result of its run on meta tensors. Output: the same result, or an empty one
with the strides of eager. Invariant: only results that are new tensors are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from torchfake._core.devices import META
from torchfake._core.metadata import (
    Operand,
    contiguous_stride,
    strides_of_result,
    strides_preserved,
)
from torchfake._operators.operator_call import Call
from torchfake._torch import subclass


def with_strides_of_eager(call: Call, meta: Any) -> Any:
    """The result with the strides that TensorIterator gives it, which is one on meta tensors only
    for kernels that are written in C++.
    """
    rule = _stride_rule(call.func)
    if rule is None or type(meta) is not torch.Tensor or id(meta) in call.fakes_by_meta:
        return meta
    if subclass.storage_key(meta.untyped_storage()) in call.storages_by_key:
        return meta
    strides = rule(call, tuple(meta.shape))
    if strides is None or strides == meta.stride():
        return meta
    return torch.empty_strided(meta.shape, strides, dtype=meta.dtype, device=META)


_StrideRule = Callable[[Call, tuple[int, ...]], tuple[int, ...] | None]

_PRESERVES_FORMAT = frozenset(
    {"aten::clone", "aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like",
     "aten::rand_like", "aten::randn_like", "aten::randint_like", "aten::hardtanh",
     "aten::nan_to_num", "aten::flip", "aten::fill"}
)  # fmt: skip
"""Operators whose results are made by ``empty_like``."""

_NOT_ELEMENTWISE = frozenset(
    {"aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.mvlgamma.default",
     "aten.pow.Scalar", "aten._to_copy.default", "aten.copy.default"}
)  # fmt: skip
"""Operators that are tagged as pointwise, and do not leave their result to TensorIterator."""

_NUMBERS_ARE_PARAMETERS = frozenset({"aten.lerp.Scalar", "aten.pow.Tensor_Scalar"})
"""Operators of tensors and numbers where numbers do not count as tensors of no dims."""


@cache
def _stride_rule(func: Any) -> _StrideRule | None:
    """How the strides of a result follow from the arguments, where the meta kernel may be wrong."""
    if func._schema.name in _PRESERVES_FORMAT:
        return _preserved
    is_single = len(func._schema.returns) == 1 and str(func._schema.returns[0].type) == "Tensor"
    is_tagged = torch.Tag.pointwise in func.tags or func._schema.name == "aten::floor_divide"
    is_elementwise = is_tagged and not func._schema.is_mutable
    if str(func) in _RULES:
        return _RULES[str(func)]
    if str(func) == "aten.pow.Scalar":
        return lambda call, size: contiguous_stride(size)
    if not is_single or not is_elementwise or str(func) in _NOT_ELEMENTWISE:
        return None
    return _of_iterator


def _of_ldexp(call: Call, size: tuple[int, ...]) -> tuple[int, ...] | None:
    """Those of a product with a power of two, which is contiguous."""
    tensor, exponent = call.args
    power = Operand(tuple(exponent.shape), contiguous_stride(tuple(exponent.shape)))
    return strides_of_result(size, [Operand(tuple(tensor.shape), tensor.stride()), power])


def _of_halves(call: Call, size: tuple[int, ...]) -> tuple[int, ...] | None:
    """Those of an elementwise function of the two halves of a tensor."""
    return strides_of_result(size, [Operand(size, call.tensors[0].stride())])


def _preserved(call: Call, size: tuple[int, ...]) -> tuple[int, ...] | None:
    """Those of ``empty_like``, unless another memory format is requested."""
    if call.kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    source = call.tensors[0]
    return strides_preserved(Operand(size, source.stride()))


def _of_iterator(call: Call, size: tuple[int, ...]) -> tuple[int, ...] | None:
    """Those of TensorIterator. Numbers in the place of a tensor are tensors of no dims."""
    arguments = call.func._schema.arguments
    values = [(a, v) for a, v in zip(arguments, call.args, strict=False)]
    values += [(a, call.kwargs[a.name]) for a in arguments if a.name in call.kwargs]
    names_scalars = "scalar" in _overload(call.func)
    operands = []
    for argument, value in values:
        kind = str(argument.type)
        if isinstance(value, torch.Tensor):
            operands.append(Operand(tuple(value.shape), value.stride()))
        elif value is not None and (kind == "Tensor" or (names_scalars and kind == "number")):
            operands.append(Operand((), ()))
    if call.traits.packet == "aten::threshold_backward":
        operands.reverse()
    return strides_of_result(size, operands) if operands else None


def _overload(func: Any) -> str:
    """The name of the overload, which says whether numbers count, if they do."""
    return "" if str(func) in _NUMBERS_ARE_PARAMETERS else func._schema.overload_name.lower()


_RULES: dict[str, _StrideRule] = {
    "aten.ldexp.Tensor": _of_ldexp,
    "aten.glu.default": _of_halves,
    "aten._prelu_kernel.default": _of_iterator,
}
"""The rules of single operators."""
