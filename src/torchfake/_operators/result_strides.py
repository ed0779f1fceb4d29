"""Strides of results, corrected where torch's meta kernels give others than eager's kernels.

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
    operand_of,
    strides_of_result,
    strides_preserved,
)
from torchfake._torch import kernels, subclass

_Kernel = Callable[..., Any]
_Size = tuple[int, ...]
_StrideRule = Callable[[Any, Any, Any, _Size], _Size | None]
"""The strides of a result of a size, by operator and arguments; None: as the kernel says."""


def with_strides_of_eager(func: Any, kernel: _Kernel, device_type: str) -> _Kernel:
    """The kernel of `func`, with the strides that eager gives its result on this device."""
    rule = _own_rule(func, device_type) or _stride_rule(func)
    if rule is None:
        return kernel
    casts = may_cast(func, device_type)

    def corrected(*args: Any, **kwargs: Any) -> Any:
        def each(meta: Any) -> Any:
            if type(meta) is not torch.Tensor or _is_of_arguments(meta, args):
                return meta
            given = copied(args) if casts and casts_all(args, meta) else args
            strides = rule(func, given, kwargs, tuple(meta.shape))
            if strides is None or strides == meta.stride():
                return meta
            return torch.empty_strided(meta.shape, strides, dtype=meta.dtype, device=META)

        made = kernel(*args, **kwargs)
        return tuple(map(each, made)) if isinstance(made, tuple) else each(made)

    return corrected


def as_cast_on_cpu(args: Any) -> Any:
    """The arguments, of which those of another dtype than the result lie as TensorIterator's copies
    of them: on the CPU it casts them first.
    """
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if len({tensor.dtype for tensor in tensors}) < 2:
        return args
    first, *others = sorted(tensors, key=lambda tensor: not tensor.dim())
    common = torch.result_type(first, others[0])
    for tensor in others[1:]:
        common = torch.promote_types(common, tensor.dtype) if tensor.dim() else common
    return tuple(
        _copied(arg) if isinstance(arg, torch.Tensor) and arg.dtype != common else arg
        for arg in args
    )


def may_cast(func: Any, device_type: str) -> bool:
    """Whether an operator may cast its tensors before it computes: elementwise, on the CPU."""
    return device_type == "cpu" and torch.Tag.pointwise in func.tags


def casts_all(args: Any, made: Any) -> bool:
    """Whether an elementwise operator computes in a dtype that none of its tensors has, as floats
    of integers: the CPU casts them first. Truth values and parts of complex numbers are no such
    dtype.
    """
    if not isinstance(made, torch.Tensor) or made.dtype == torch.bool:
        return False
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return all(t.dtype != made.dtype and not t.is_complex() for t in tensors)


def copied(args: Any) -> Any:
    """The arguments, with tensors that lie as copies of them do."""
    return tuple(_copied(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    strides = strides_preserved(operand_of(tensor))
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=META)


def has_own_rule(func: Any, device_type: str) -> bool:
    """Whether a rule for `func` alone says what its strides are."""
    return _own_rule(func, device_type) is not None


def _own_rule(func: Any, device_type: str) -> _StrideRule | None:
    found = _RULES_OF_CPU.get(str(func)) if device_type == "cpu" else None
    return found or _RULES.get(str(func))


def _is_of_arguments(meta: torch.Tensor, args: Any) -> bool:
    key = subclass.storage_key(meta.untyped_storage())
    tensors = (arg for arg in args if isinstance(arg, torch.Tensor))
    return any(subclass.storage_key(t.untyped_storage()) == key for t in tensors)


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
"""Operators that are tagged as pointwise, but whose results TensorIterator does not allocate."""

_NUMBERS_ARE_PARAMETERS = frozenset({"aten.lerp.Scalar", "aten.pow.Tensor_Scalar"})
"""Operators whose numbers do not count as 0-dim tensors when the strides are computed."""


@cache
def _stride_rule(func: Any) -> _StrideRule | None:
    """The rule that computes the result's strides; None if those of the meta kernel are right."""
    if func._schema.name in _PRESERVES_FORMAT:
        return _preserved
    is_single = len(func._schema.returns) == 1 and str(func._schema.returns[0].type) == "Tensor"
    is_tagged = torch.Tag.pointwise in func.tags or func._schema.name == "aten::floor_divide"
    is_elementwise = is_tagged and not func._schema.is_mutable
    if not is_single or not is_elementwise or str(func) in _NOT_ELEMENTWISE:
        return None
    return of_iterator


def _contiguous(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    return contiguous_stride(size)


def _contiguous_if_empty(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    return contiguous_stride(size) if 0 in size else None


def _contiguous_of_complex(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    """The real part of a complex result is copied to a result that has no strides yet."""
    rule = _contiguous if args[0].is_complex() else of_iterator
    return rule(func, args, kwargs, size)


def _preserved(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    """Those of ``empty_like``, unless another memory format is requested."""
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    return strides_preserved(Operand(size, args[0].stride()))


def _preserved_without_columns(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    return None if size[-1] else _preserved(func, args, kwargs, size)


def _like_second(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    """Those of ``empty_like`` of the second argument."""
    return strides_preserved(operand_of(args[1]))


def _like_second_if_empty(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    is_empty = 0 in args[1].shape or 0 in args[2].shape
    return strides_preserved(operand_of(args[1])) if is_empty and size == args[1].shape else None


def _suggested_by_second(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    """Those of the memory format that the second argument suggests."""
    like = torch.empty(size, device=META)
    return like.to(memory_format=kernels.memory_format_of(args[1])).stride()


def _of_unreduced(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    """Those of ``empty_like`` of the first argument, if the loss is not reduced."""
    return strides_preserved(operand_of(args[0])) if size == args[0].shape else None


def _of_reversed(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    """Those of TensorIterator, to which C++ gives the arguments in reverse."""
    return strides_of_result(size, [operand_of(args[1]), operand_of(args[0])])


def _prelu_gradient(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    """Those of TensorIterator; the gradient is the last operand."""
    grad, tensor, weight = map(operand_of, args)
    return strides_of_result(size, [tensor, weight, grad])


def of_iterator(func: Any, args: Any, kwargs: Any, size: _Size) -> _Size | None:
    """Those of TensorIterator. Numbers in the place of a tensor are tensors of no dims."""
    arguments = func._schema.arguments
    values = [(a, v) for a, v in zip(arguments, args, strict=False)]
    values += [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]
    names_scalars = "scalar" in _overload(func)
    operands = []
    for argument, value in values:
        kind = str(argument.type)
        if isinstance(value, torch.Tensor):
            operands.append(operand_of(value))
        elif value is not None and (kind == "Tensor" or (names_scalars and kind == "number")):
            operands.append(Operand((), ()))
    return strides_of_result(size, operands) if operands else None


def _overload(func: Any) -> str:
    """The name of the overload, which has "scalar" in it if numbers count as 0-dim tensors."""
    return "" if str(func) in _NUMBERS_ARE_PARAMETERS else func._schema.overload_name.lower()


_RULES: dict[str, _StrideRule] = {
    "aten.angle.default": _contiguous_of_complex,
    "aten._prelu_kernel.default": _preserved,
    "aten._prelu_kernel_backward.default": _prelu_gradient,
    "aten.complex.default": of_iterator,
    "aten.polar.default": of_iterator,
    "aten.rsub.Tensor": _of_reversed,
    "aten.hardswish.default": of_iterator,
    "aten.hardswish_backward.default": of_iterator,
    "aten.hardtanh_backward.default": of_iterator,
    "aten.mish_backward.default": of_iterator,
    "aten.repeat.default": _contiguous,
    "aten.var.correction": _contiguous_if_empty,
    "aten.var_mean.correction": _contiguous_if_empty,
}
"""The rules of single operators on all devices. All results of one have the same."""

_RULES_OF_CPU: dict[str, _StrideRule] = {
    **dict.fromkeys(
        (
            "aten.log_sigmoid_forward.default", "aten.native_layer_norm_backward.default",
            "aten.glu_backward.default", "aten.grid_sampler_2d.default", "aten.poisson.default",
            "aten.rrelu_with_noise.default",
        ),
        _contiguous,
    ),
    **dict.fromkeys(
        (
            "aten.reflection_pad2d_backward.default", "aten.reflection_pad3d_backward.default",
            "aten.replication_pad2d_backward.default", "aten.replication_pad3d_backward.default",
        ),
        _suggested_by_second,
    ),
    "aten.binary_cross_entropy.default": _of_unreduced,
    "aten.binary_cross_entropy_backward.default": _like_second,
    "aten.linalg_matrix_sqrth.default": _preserved_without_columns,
    "aten.log_sigmoid_backward.default": _preserved,
    "aten._cdist_backward.default": _like_second_if_empty,
}  # fmt: skip
"""The same of the kernels of the CPU."""


_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


def takes_threads_into_account(func: Any, args: Any) -> bool:
    """Whether the CPU chooses a kernel, whose result lies otherwise, by the number of threads: for
    convolutions with windows of one element.
    """
    if func is _CONVOLUTION:
        images, weight, *_ = args
    elif func is _CONVOLUTION_BACKWARD:
        _, images, weight, *_ = args
    else:
        return False
    is_single = weight.shape[2:].numel() == 1 and images.device.type == "cpu"
    return bool(is_single and images.dim() > (4 if func is _CONVOLUTION else 3))
