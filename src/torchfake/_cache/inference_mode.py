"""Inference mode: a result is an inference tensor if, and only if, it is one in eager mode.

Input: an operation, and a function that runs it. Output: its result. Invariant: in inference mode
an operation on a normal tensor, and outside of it one on an inference tensor, is run in the mode
that suits the argument where eager's result is of the argument's kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._core.schemas import traits_of
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._tensor.fake_tensor import FakeTensor, new_fake, with_version_counter
from torchfake._torch import autograd, dispatcher, kernels

in_inference_mode = torch.is_inference_mode_enabled


class Inference:
    """Whether inference tensors may exist among fakes: asking each fake takes a tenth of a hit."""

    seen = False


inference = Inference()


def is_inference(args: Args) -> bool:
    """Whether the first argument of an operator is an inference tensor."""
    inference.seen = inference.seen or in_inference_mode()
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_inference()


def is_of_other_kind(args: Args) -> bool:
    """Whether only one is true: inference mode is on, or the first argument is made in it."""
    return in_inference_mode() != is_inference(args)


def run_in_kind_of_argument(
    run: Callable[[Any, Args, Kwargs], Any], func: Any, args: Args, kwargs: Kwargs
) -> Any:
    """Run an operation on a normal tensor in inference mode, or on an inference tensor outside of
    it, so that the result is of the kind that eager returns: a view is an inference tensor if and
    only if its base is; a copy (``reshape``, if no view is possible) if and only if the mode is on.
    """
    traits, is_on = traits_of(func), in_inference_mode()
    if not traits.keeps_inference or not isinstance(args[0], FakeTensor):
        return run(func, args, kwargs)
    if is_on and traits.is_view and kernels.records_bases_in_parts(func):
        with dispatcher.view_bases_recorded(
            True
        ):  # else the view has no base: C++ did not decompose it
            return kernels.decompose(func, args, kwargs)
    with autograd.inference_mode(not is_on):
        result = run(func, args, kwargs)
    if is_on or not isinstance(result, FakeTensor):
        return result
    if result._fake_storage is not args[0]._fake_storage:
        return new_fake(result._fake_meta, result._fake_storage)
    return with_version_counter(result) if func is torch.ops.aten.detach.default else result
