"""Gradients whose strides C++ makes otherwise for subclasses: it works in place for plain tensors.

Input: a call of the operator, forward. Output: its result, with a hook on its node that lays the
gradient of the first argument as that of a plain tensor lies. Invariant: values stay the same; a
gradient that lies so already is not copied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchfake._core.metadata import (
    Operand,
    contiguous_stride,
    operand_of,
    strides_of_result,
    strides_preserved,
)
from torchfake._operators.constant_propagation import argument_value, is_known
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd, dispatcher

Strides = tuple[int, ...]


def extreme(redispatch: Callable[..., Any], tensor: Tensor) -> Any:
    """``max()``, ``min()`` and ``median()`` of all elements: the gradient is made in zeros on the
    CPU; on CUDA and for subclasses it is a product, whose zeros have a sign, or are NaN
    (``evenly_distribute_backward`` in torch/csrc/autograd/FunctionsManual.cpp).
    """
    result = redispatch(tensor)
    node = getattr(result, "grad_fn", None)
    if node is None or not isinstance(tensor, FakeTensor) or tensor.device.type == "cuda":
        return result

    def distribute(gradients: tuple[Any, ...], incoming: tuple[Any, ...]) -> Any:
        grad = gradients[0]
        if not isinstance(grad, FakeTensor):
            return None
        if grad._fake_storage.deferred or is_known(grad) or torch.is_grad_enabled():
            return (_evenly_distributed(grad, incoming[0]),)
        stride = contiguous_stride(tuple(grad.shape))
        return None if grad.stride() == stride else (_copy(grad, stride),)

    node.register_hook(distribute)
    return result


def _evenly_distributed(product: Tensor, incoming: Tensor) -> Tensor:
    """The gradient in zeros. Under a checkpoint the node alone can read what it saved, and the
    product says where its mask was, unless the incoming gradient is zero or NaN.
    """
    if saved := autograd.saved_by_running_node("self", "result"):
        tensor, result = saved
        mask = (tensor == result).logical_or_(tensor.isnan().logical_and_(result.isnan()))
    else:
        is_outside = product.isnan().logical_and_(incoming.isnan().logical_not())
        mask = (product != 0).logical_and_(is_outside.logical_not_())
    return incoming.new_zeros(product.shape).masked_fill_(mask, incoming / mask.sum())


def masked_select(redispatch: Callable[..., Any], tensor: Tensor, mask: Tensor) -> Any:
    """``masked_select``: the gradient is made in ``zeros_like``."""
    own = operand_of(tensor)
    return _laid(redispatch(tensor, mask), lambda grad: strides_preserved(own), tensor)


def prod(redispatch: Callable[..., Any], tensor: Tensor, *rest: Any, **named: Any) -> Any:
    """``prod``: the gradient is a quotient, unless an element is zero."""
    result, own = redispatch(tensor, *rest, **named), operand_of(tensor)
    if not tensor.dim():
        return result  # the gradient is the incoming one
    if not rest:
        quotient = Operand(own.size, strides_of_result(own.size, [_NUMBER, own]))
        whole = strides_of_result(own.size, [_NUMBER, quotient])
        return _laid(
            result, lambda grad: whole, tensor, is_new=True, exact=partial(_quotient, of_all=True)
        )
    dim, keeps_dim = rest[0], len(rest) > 1 and rest[1]

    def with_dim(operand: Operand) -> Operand:
        if keeps_dim:
            return operand
        return operand_of(torch.empty_strided(*operand, device="meta").unsqueeze(dim))

    made = with_dim(operand_of(result))

    def strides(grad: Tensor) -> Strides:
        each = Operand(own.size, strides_of_result(own.size, [made, own]))
        return strides_of_result(own.size, [with_dim(operand_of(grad)), each])

    exact = partial(_quotient, dim=None if keeps_dim else dim)
    return _laid(result, strides, tensor, is_new=True, exact=exact)


def _quotient(
    grad: Tensor, incoming: Tensor, *, dim: int | None = None, of_all: bool = False
) -> Tensor:
    """Eager's formula, which for subclasses is the product of the other elements: that product,
    `grad`, has other last bits. It stays if the values are not known, or one is zero.
    """
    saved = autograd.saved_by_running_node("self", "result")
    if not saved or not is_known(saved[0]):
        return grad
    tensor, result = saved
    if num_zeros := int((argument_value(tensor) == 0).sum()):
        return torch.zeros_like(tensor) if of_all and num_zeros > 1 else grad
    if dim is not None:
        incoming, result = incoming.unsqueeze(dim), result.unsqueeze(dim)
    return incoming * (result / tensor.to(incoming.dtype)).conj()


def clamp(redispatch: Callable[..., Any], tensor: Tensor, *bounds: Any, **named: Any) -> Any:
    """``clamp`` by two bounds: the gradient is chosen by the first comparison, into which the other
    is written (torch/csrc/autograd/FunctionsManual.cpp).
    """
    result, own = redispatch(tensor, *bounds, **named), operand_of(tensor)
    least, *others = (*bounds, *named.values())
    if least is None or not others or others[0] is None or result.shape != own.size:
        return result
    bound = operand_of(least) if isinstance(least, Tensor) else _NUMBER

    def strides(grad: Tensor) -> Strides:
        compared = Operand(own.size, strides_of_result(own.size, [own, bound]))
        return strides_of_result(own.size, [compared, operand_of(grad), _NUMBER])

    if isinstance(least, Tensor) and least.shape == own.size:
        _laid(result, strides, least, at=1)
    return _laid(result, strides, tensor)


_NUMBER = Operand((), ())


def cumprod(redispatch: Callable[..., Any], tensor: Tensor, dim: int, **named: Any) -> Any:
    """``cumprod``: the gradient is a sum divided by the argument, unless an element is zero."""
    result, own = redispatch(tensor, dim, **named), operand_of(tensor)
    if tensor.numel() < 2 or own.size[dim] == 1:
        return result  # the gradient is the incoming one
    added = Operand(own.size, contiguous_stride(own.size))
    return _laid(result, lambda grad: strides_of_result(own.size, [added, own]), tensor)


def binary_cross_entropy_with_logits(
    redispatch: Callable[..., Any],
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    *rest: Any,
) -> Any:
    """The loss: its gradient is computed in the place of a sigmoid, or of weighted targets
    (aten/src/ATen/native/Loss.cpp).
    """
    result, own = redispatch(logits, target, weight, pos_weight, *rest), operand_of(logits)
    begun = strides_of_result(own.size, [own])
    if pos_weight is not None:
        begun = strides_of_result(own.size, [operand_of(pos_weight), operand_of(target)])
        begun = strides_of_result(own.size, [Operand(own.size, begun), _NUMBER])
    return _laid(result, lambda grad: begun, logits)


def _laid(
    result: Any,
    strides: Callable[[Tensor], Strides],
    tensor: Tensor,
    *,
    at: int = 0,
    is_new: bool = False,
    exact: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Any:
    """`result`, whose node gives a gradient of these strides for the tensor `at` this position;
    they depend on the incoming one. The gradient has memory of its own if it `is_new`; its values
    are `exact` where it is not differentiated again.
    """
    node = getattr(result, "grad_fn", None)
    if node is None or not _is_plain(tensor):
        return result
    shape = tensor.shape

    def lay(gradients: tuple[Any, ...], incoming: tuple[Any, ...]) -> Any:
        grad = gradients[at]
        if grad is None or grad.shape != shape or not _is_plain(grad) or not _is_plain(incoming[0]):
            return None
        if exact is not None and not torch.is_grad_enabled():
            grad = exact(grad, incoming[0])
        stride = strides(incoming[0])
        is_shared = grad._base is not None or grad._fake_storage is incoming[0]._fake_storage
        if grad is gradients[at] and grad.stride() == stride and not (is_new and is_shared):
            return None
        return (*gradients[:at], _copy(grad, stride), *gradients[at + 1 :])

    node.register_hook(lay)
    return result


def mish_backward(redispatch: Callable[..., Any], grad: Tensor, tensor: Tensor) -> Any:
    """``mish_backward`` is a composite, and a single kernel on the CPU, with other last bits."""
    has_fakes = isinstance(grad, FakeTensor) or isinstance(tensor, FakeTensor)
    is_differentiated = autograd.needs_gradient(grad) or autograd.needs_gradient(tensor)
    if not has_fakes or tensor.device.type != "cpu" or is_differentiated:
        return redispatch(grad, tensor)
    op = torch.ops.aten.mish_backward.default
    with dispatcher.in_fake_slot(None):  # as torch dispatches to Python
        return FakeTensor.__torch_dispatch__(op, (), (grad, tensor))


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor is a fake that is not recorded."""
    return isinstance(tensor, FakeTensor) and not tensor._fake_storage.deferred


def _copy(tensor: Tensor, stride: Strides) -> Tensor:
    made = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)
