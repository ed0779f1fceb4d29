"""CTC loss on CUDA: the kernel of cuDNN, which saves a gradient and no table, where C++ takes it.

Input: a call of ``ctc_loss``, whose first tensor may be a plain fake on CUDA. Output: the loss.
Invariant: the conditions follow aten/src/ATen/native/cudnn/LossCTC.cpp; unknown lengths are assumed
to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfake._operators.constant_propagation import argument_value, is_known

aten = torch.ops.aten
Redispatch = Callable[..., Any]

_NO_REDUCTION, _MEAN = 0, 1  # c10: Reduction.h
_MAX_LENGTH = 256


def with_tensors(
    redispatch: Redispatch,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Any:
    """``ctc_loss`` with lengths in tensors, as _use_cudnn_ctc_loss_tensor decides. Lengths that
    cuDNN does not accept are read.
    """
    lengths = input_lengths, target_lengths
    known = [_known(n) for n in lengths]
    takes_cudnn = (
        _tensors_fit(log_probs, targets, blank)
        and all(n.dtype is torch.int32 for n in lengths)
        and _lengths_fit(*known)
    )
    options = blank, reduction, zero_infinity
    if not takes_cudnn:
        if None in known or not log_probs.is_cuda:
            return redispatch(log_probs, targets, *lengths, *options)
        return aten.ctc_loss.IntList(log_probs, targets, *known, *options)
    on_device = [n.to(log_probs.device) for n in lengths]
    kernel = aten._cudnn_ctc_loss.Tensor
    return _run(kernel, log_probs, targets, on_device, *options)


def with_lists(
    redispatch: Redispatch,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: list[int],
    target_lengths: list[int],
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Any:
    """``ctc_loss`` with lengths in lists. _use_cudnn_ctc_loss requires targets on the CPU and
    inputs of full length.
    """
    lengths = input_lengths, target_lengths
    takes_cudnn = (
        _tensors_fit(log_probs, targets, blank)
        and targets.device.type == "cpu"
        and all(n == log_probs.shape[0] for n in input_lengths)
        and _lengths_fit(*lengths)
    )
    options = blank, reduction, zero_infinity
    if not log_probs.is_cuda:
        return redispatch(log_probs, targets, *lengths, *options)
    if not takes_cudnn:
        return _run_without_cudnn(log_probs, targets, lengths, *options)
    return _run(aten._cudnn_ctc_loss.default, log_probs, targets, lengths, *options)


def _tensors_fit(log_probs: Tensor, targets: Tensor, blank: int) -> bool:
    return (
        log_probs.is_cuda
        and torch.backends.cudnn.enabled
        and blank == 0
        and targets.dim() == 1
        and log_probs.dim() == 3
        and log_probs.dtype is torch.float32
        and targets.dtype is torch.int32
        and targets.is_contiguous()
    )


def _known(lengths: Tensor) -> list[int] | None:
    return argument_value(lengths).reshape(-1).tolist() if is_known(lengths) else None


def _lengths_fit(of_inputs: Sequence[int] | None, of_targets: Sequence[int] | None) -> bool:
    if of_inputs is None or of_targets is None:
        return True
    pairs = zip(of_inputs, of_targets, strict=False)
    return all(target < _MAX_LENGTH and target <= given for given, target in pairs)


def _run(
    kernel: Any, log_probs: Tensor, targets: Tensor, lengths: Any, blank: int, *rest: Any
) -> Tensor:
    """aten/src/ATen/native/LossCTC.cpp, ctc_loss_impl, with cuDNN."""
    reduction, zero_infinity = rest
    options = blank, torch.backends.cudnn.deterministic, zero_infinity
    return _reduced(kernel(log_probs, targets, *lengths, *options)[0], lengths[1], reduction)


def _run_without_cudnn(
    log_probs: Tensor, targets: Tensor, lengths: Any, blank: int, *rest: Any
) -> Tensor:
    """ctc_loss_impl without cuDNN, composed here: C++ would write lengths to the wrapper's memory,
    which does not exist.
    """
    reduction, zero_infinity = rest
    batch = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    targets = targets.to(log_probs.device, torch.int64)
    losses = aten._ctc_loss.default(batch, targets, *lengths, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == torch.inf, losses.new_zeros(()), losses)
    losses = _reduced(losses, lengths[1], reduction)
    is_single = log_probs.dim() < 3 and reduction == _NO_REDUCTION
    return losses.squeeze(0) if is_single else losses


def _reduced(losses: Tensor, target_lengths: Any, reduction: int) -> Tensor:
    if reduction == _MEAN:
        divisors = target_lengths
        if not isinstance(divisors, Tensor):
            divisors = torch.tensor(divisors, dtype=losses.dtype, device=losses.device)
        return (losses / divisors.clamp_min(1)).mean()
    return losses if reduction == _NO_REDUCTION else losses.sum()
