"""Derivatives that C++ computes by another formula for tensor subclasses.

Input: a call of a backward operator, or of an operator whose gradient or tangent C++ computes
differently, while operations are recorded. Output: its result. Invariant: the last operation that
is recorded for the derivative computes it as eager mode does: by eager's call, or its formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfake._core import source_location
from torchfake._core.schemas import traits_of
from torchfake._graph.operations import Op, Read
from torchfake._operators.operator_call import mutated_arguments
from torchfake._recording.arguments import (
    has_unknown_value,
    is_materialized,
    is_real,
    with_real_tensors,
)
from torchfake._recording.graph_builder import add_write, contents_before_write, recorded_arg
from torchfake._tensor.fake_tensor import is_deferred_fake
from torchfake._torch import autograd, dispatcher, zero_tensors

aten = torch.ops.aten
Redispatch = Callable[..., Any]


def cumprod_backward(redispatch: Redispatch, *args: Any) -> Tensor:
    """torch/csrc/autograd/FunctionsManual.cpp: for subclasses, C++ sums in another order."""
    if torch.is_grad_enabled() and not _are_in_transform(args):  # it may be differentiated again
        return _cumprod_gradient(redispatch, *args)
    recorded = _recorded_arguments(aten.cumprod_backward.default, args)
    result: Tensor = redispatch(*args)
    if recorded is not None and not _is_view_of(result, args[0]):
        _overwrite(result, _write_cumprod_backward, recorded, {})
    return result


def _cumprod_gradient(
    redispatch: Redispatch, grad: Tensor, tensor: Tensor, dim: int, output: Tensor
) -> Tensor:
    """Eager's formula, which can be differentiated and depends on whether an element is zero."""
    if not _is_known(tensor):
        return redispatch(grad, tensor, dim, output)  # type: ignore[no-any-return]
    if tensor.numel() <= 1 or tensor.shape[dim] == 1:
        return grad
    if _has_no_zeros(tensor):
        weights = output.conj() * grad
        return weights.flip(dim).cumsum(dim).flip(dim).div(tensor.conj())
    products = _products_of_others(tensor.conj(), dim)
    sums = [(grad.narrow(dim, i, p.shape[dim]) * p).sum(dim) for i, p in enumerate(products)]
    return torch.stack(sums, dim)


def _products_of_others(tensor: Tensor, dim: int) -> Iterator[Tensor]:
    """For each index i along `dim`: the products of elements 0 to k without i, for all k >= i."""
    last = tensor.shape[dim] - 1
    before = tensor.new_ones(()).expand_as(tensor.narrow(dim, 0, 1))
    for i in range(last):
        after = tensor.narrow(dim, i + 1, last - i).cumprod(dim)
        if i:
            before = tensor.narrow(dim, 0, i).prod(dim, keepdim=True)
            after = before.expand_as(after) * after
        yield torch.cat((before, after), dim)
    yield tensor.narrow(dim, 0, last).prod(dim, keepdim=True)


def _write_cumprod_backward(target: Tensor, *args: Any) -> None:
    target.copy_(aten.cumprod_backward.default(*args))


def with_tangents_of_eager(op: Any) -> Callable[..., Any]:
    """A kernel for an operator whose tangents, in a dual level, C++ computes by another formula."""

    def write_tangent(target: Tensor, at: int, args: Any, tangents: Any, **options: Any) -> None:
        target.copy_(zero_tensors.tangent_of_result(op, at, args, tangents, options))

    def kernel(redispatch: Redispatch, *args: Any, **options: Any) -> Any:
        tangents = [zero_tensors.tangent_of(arg) for arg in args]
        recorded = None
        if any(tangent is not None for tangent in tangents):
            recorded = _recorded_arguments(op, args, tangents)
        result = redispatch(*args, **options)
        if recorded is not None:
            split = recorded[: len(args)], recorded[len(args) :]
            for i, part in enumerate((result,) if isinstance(result, Tensor) else result):
                _overwrite(zero_tensors.tangent_of(part), write_tangent, (i, *split), options)
        return result

    write_tangent.__qualname__ = f"tangent of {op}"
    return kernel


_prods = {op: with_tangents_of_eager(op) for op in (aten.prod.default, aten.prod.dim_int)}


def prod(redispatch: Redispatch, *args: Any, **options: Any) -> Tensor:
    """torch/csrc/autograd/FunctionsManual.cpp: if no element is zero, the gradient is the result
    divided by the tensor; for subclasses it is always the product of the other elements.
    """
    overload = aten.prod.dim_int if len(args) > 1 else aten.prod.default
    result: Tensor = _prods[overload](redispatch, *args, **options)
    node, is_number = result.grad_fn, not args[0].dim()
    if node is None or autograd.is_mapped(args[0]) or (is_number and len(args) > 1):
        return result  # the gradient along a dim of a number is the incoming one
    recorded = _recorded_arguments(overload, args)

    def overwrite(gradients: tuple[Any, ...], incoming: tuple[Any, ...]) -> Any:
        if gradients[0] is None:
            return None
        if torch.is_grad_enabled():  # it may be differentiated again
            return _prod_gradient(gradients[0], incoming[0], *args[1:]), *gradients[1:]
        rest = _recorded_arguments(overload, (incoming[0],))
        if recorded is None or rest is None:
            return None
        gradient = gradients[0]
        is_view = _is_view_of(gradient, incoming[0])  # of one element each; eager has a product
        if is_view:
            gradient = _times_others(incoming[0], *args[1:])
        _overwrite(gradient, _write_prod_backward, (overload, rest[0], recorded), options)
        return (gradient, *gradients[1:]) if is_view else None

    if not has_unknown_value(autograd.without_levels(args[0])):
        args = (None, *args[1:])  # the node that holds the hook has saved the tensor
        node.register_hook(overwrite)
    return result


def _prod_gradient(
    of_subclasses: Tensor, grad: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor:
    """Eager's formula: a quotient if the values are known and not zero, else `of_subclasses`."""
    saved = autograd.saved_by_running_node("self")
    tensor = saved[0].to(grad.dtype) if saved else None
    if tensor is None or not tensor.dim() or autograd.is_in_transform(tensor):
        return of_subclasses
    return _times_others(grad, dim, keepdim) if _has_no_zeros(tensor) else of_subclasses


def _times_others(grad: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    saved = autograd.saved_by_running_node("self", "result")
    if dim is not None and not keepdim:
        grad, saved = grad.unsqueeze(dim), saved[:1] + [x.unsqueeze(dim) for x in saved[1:]]
    return grad * (saved[1] / saved[0].to(grad.dtype)).conj() if saved else grad * 1


def _is_view_of(gradient: Tensor, incoming: Tensor) -> bool:
    own = getattr(gradient, "_fake_storage", None)
    return own is not None and own is getattr(incoming, "_fake_storage", None)


def _are_in_transform(args: Sequence[Any]) -> bool:
    return any(isinstance(arg, Tensor) and autograd.is_in_transform(arg) for arg in args)


def _is_known(tensor: Tensor) -> bool:
    return not has_unknown_value(autograd.without_levels(tensor))


def _has_no_zeros(tensor: Tensor) -> bool:
    """Whether the values are known and none is zero. The values are read, as in eager."""
    with autograd.no_grad():
        return _is_known(tensor) and not (tensor == 0).any().item()


def _write_prod_backward(target: Tensor, op: Any, grad: Tensor, args: Any, **options: Any) -> None:
    with torch.enable_grad():
        leaf = args[0].detach().requires_grad_()
        product = op(leaf, *args[1:], **options)
    target.copy_(torch.autograd.grad(product, leaf, grad)[0])


def _recorded_arguments(op: Any, args: Any, tangents: Sequence[Any] = ()) -> list[Any] | None:
    """The arguments as they are recorded, before the call; None if not all of them can be."""
    every = [with_real_tensors(arg) for arg in (*args, *tangents)]
    if any(isinstance(arg, Tensor) and _cannot_be_recorded(arg) for arg in every):
        return None
    for i, arg in enumerate(every):
        if any(arg is t for t in mutated_arguments(traits_of(op), args, {})) and is_real(arg):
            with dispatcher.as_eager():
                every[i] = arg.clone()  # running statistics outside of the mode
    return [recorded_arg(op, arg) for arg in every]


def _cannot_be_recorded(tensor: Tensor) -> bool:
    """Whether `tensor` has no value, or belongs to a transform of ``torch.func``, in which C++
    takes all tensors for subclasses anyway.
    """
    return has_unknown_value(tensor) or autograd.is_transformed(tensor)


def _overwrite(result: Any, function: Any, args: Any, options: Any) -> None:
    """Record that `function` writes the values of `result`, which no other tensor views."""
    if not is_deferred_fake(result) or is_materialized(result) or result._fake_meta.zero:
        return
    target = Read(contents_before_write(result), result._fake_meta)
    op = Op(function, (target, *args), dict(options), source_location.caller_location(3))
    add_write(op, result._fake_storage)
