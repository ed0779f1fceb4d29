"""Composite operators that C++ decomposes differently for tensor subclasses, or for the device
that C++ sees: decomposed as for plain tensors on the reported device.

Input: a call of one of these operators while operations are recorded, with fakes or real tensors.
Output: its result, from the operators that eager mode would run. Invariant: a composite that eager
mode decomposes alike for all tensors is not here; tests/opinfo records all of torch's operator
database, and compares the replayed results with eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfake._core import modes
from torchfake._operators.composites.matrices import autocast
from torchfake._operators.operator_call import tensors_in
from torchfake._recording.arguments import deferred_fakes, have_values
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import autograd
from torchfake.errors import UnknownValueError

aten = torch.ops.aten
Redispatch = Callable[..., Any]


def matmul(redispatch: Redispatch) -> Callable[[Any, Tensor, Tensor], Tensor]:
    """aten/src/ATen/native/LinearAlgebra.cpp: a batch of one matrix is multiplied as a matrix if it
    requires grad, or if an operand is a subclass or wrapped by ``torch.func``; else the batch is
    expanded.
    """

    def kernel(keys: Any, a: Tensor, b: Tensor) -> Tensor:
        num_dims = a.dim(), b.dim()
        if num_dims == (2, 2):  # the most frequent, by the shortest way
            return a.mm(b)
        if num_dims == (3, 3) and a.shape[0] != b.shape[0] and not _any_transformed(a, b):
            if a.shape[0] == 1 and not a.requires_grad:
                a = a.expand(b.shape[0], -1, -1)
            elif b.shape[0] == 1 and not b.requires_grad:
                b = b.expand(a.shape[0], -1, -1)
        return redispatch(keys, a, b)  # type: ignore[no-any-return]

    return kernel


def _any_transformed(*tensors: Tensor) -> bool:
    return any(map(autograd.is_transformed, tensors))


_NO_REDUCTION, _MEAN = 0, 1  # c10: Reduction.h


def ctc_loss(
    redispatch: Redispatch,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    """aten/src/ATen/native/LossCTC.cpp: for plain tensors, C++ reads the lengths, which determine
    the size of a table that is saved for the backward pass.
    """
    lengths = [_read_integers(n) for n in (input_lengths, target_lengths)]
    if None in lengths or log_probs.device.type != "cpu":
        args = log_probs, targets, input_lengths, target_lengths
        return redispatch(*args, blank, reduction, zero_infinity)  # type: ignore[no-any-return]
    kept = _NO_REDUCTION if reduction == _MEAN else reduction
    targets = _recorded(targets, log_probs if is_deferred_fake(log_probs) else None)
    loss: Tensor = aten.ctc_loss.IntList(log_probs, targets, *lengths, blank, kept, zero_infinity)
    if reduction == _MEAN:  # C++ would write the lengths to memory of the carrier device
        divisors = torch.tensor(lengths[1], dtype=loss.dtype, device="cpu").clamp_min(1)
        return (loss.reshape(-1) / divisors).mean()
    return loss


def _read_integers(tensor: Tensor) -> list[int] | None:
    """The integers in a tensor, or None if their values are not known."""
    if tensor.is_floating_point() or tensor.is_meta:
        return None
    try:
        return tensor.reshape(-1).tolist()
    except UnknownValueError:
        return None


def cross_entropy_loss(
    redispatch: Redispatch,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """aten/src/ATen/native/LossNLL.cpp: for plain tensors, C++ sums the selected weights of targets
    that are not ignored; for others, the weights of all targets, with zeros for ignored ones.
    """
    selects = label_smoothing > 0 and reduction == _MEAN and target.shape != scores.shape
    if weight is None or not selects or not have_values((scores, target, weight)):
        options = reduction, ignore_index, label_smoothing
        return redispatch(scores, target, weight, *options)  # type: ignore[no-any-return]
    scores, weight = autocast(scores), autocast(weight)
    dim = 0 if scores.dim() == 1 else 1
    log_probs = torch.log_softmax(scores, dim, dtype=scores.dtype)
    loss: Tensor = aten.nll_loss_nd.default(log_probs, target, weight, reduction, ignore_index)
    shape = [-1 if i == dim else 1 for i in range(scores.dim())]
    is_ignored = target == ignore_index
    smooth = (-(log_probs * weight.view(shape)).sum(dim)).masked_fill_(is_ignored, 0.0)
    kept = weight.gather(0, target.masked_select(~is_ignored).flatten())
    smooth = smooth.sum() / kept.sum()
    return loss * (1 - label_smoothing) + smooth * (label_smoothing / scores.shape[dim])


def embedding_bag(
    redispatch: Redispatch, weight: Tensor, indices: Tensor, offsets: Tensor, *args: Any
) -> Any:
    """aten/src/ATen/native/EmbeddingBag.cpp: in inference mode, this operator reaches Python whole.
    C++ would decompose it on meta tensors, for which the results have other shapes.
    """
    if not torch.is_inference_mode_enabled() or weight.requires_grad:
        return redispatch(weight, indices, offsets, *args)
    defaults: tuple[Any, ...] = (False, 0, False, None, False, None)
    *options, padding = (*args, *defaults[len(args) :])
    padding = -1 if padding is None else padding % weight.shape[0]
    forward = aten._embedding_bag_forward_only.default
    return forward(weight, indices.contiguous(), offsets.contiguous(), *options, padding)


def with_recorded_arguments(redispatch: Redispatch, *args: Any, **kwargs: Any) -> Any:
    """A kernel for composites that make a tensor on the device of their arguments, and compare the
    devices of both. The tensor that they make is a fake, so real arguments become deferred ones.
    """
    fakes = deferred_fakes(tensors_in(args, kwargs))
    like = fakes[0] if fakes else None
    recorded = {name: _recorded(value, like) for name, value in kwargs.items()}
    return redispatch(*(_recorded(value, like) for value in args), **recorded)


def _recorded(value: Any, like: Tensor | None) -> Any:
    """A deferred copy of a real tensor, in a mode or if `like` is a deferred tensor."""
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or value.is_meta:
        return value
    if modes.current() is not None:
        return value.clone()
    return value if like is None else like.new_empty(value.shape, dtype=value.dtype).copy_(value)
