"""Inputs for another batch size or another sequence length.

Input: a workload, "batch" or "seq", and a size. Output: the workload with inputs of that size, as
fakes. Invariant: only dimensions that have the old size are changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchfake._torch import autograd
from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import Workload, tensors_in
from torchfake.inspect.steps.step import Step
from torchfake.observe import FakeCopies

BATCH, SEQ = "batch", "seq"


def size_of(workload: Workload, vary: str) -> int:
    """The current size of the batch, or of the sequence.

    Raises:
        InputsError: if no input has a batch, or a sequence.
    """
    known = getattr(workload.kwargs, vary, None)  # an attribute of ExampleInputs
    if isinstance(known, int):
        return known
    dim = 0 if vary == BATCH else 1
    for tensor in tensors_in((workload.args, dict(workload.kwargs))):
        if tensor.dim() > dim and (vary == BATCH or not tensor.is_floating_point()):
            return int(tensor.shape[dim])
    where = "first dimension" if vary == BATCH else "integer tensor [batch, seq, ...]"
    raise InputsError(f"no input has a {vary}: it would be the {where}")


def longest_text(workload: Workload, step: Step) -> int:
    """The tokens of the longest sequence in a step; 0 if it has none."""
    if step.lengths:
        return max(step.lengths)
    parts = step.decode
    if step.serve is not None:
        parts = step.serve.prompt_length, step.serve.context - step.serve.prompt_length
    if parts is None:
        return 0 if workload.program is not None else text_length(workload)
    config = getattr(workload.module, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return max(parts)
    return sum(parts) - (step.decode is not None)  # the last new token is never read


def text_length(workload: Workload) -> int:
    """The tokens of a sequence in the inputs; 0 if they have none."""
    try:
        return size_of(replace(workload, device=None), SEQ)
    except InputsError:
        return 0


def resized(workload: Workload, vary: str, size: int) -> Workload:
    """The workload with a batch, or sequences, of `size`.

    Inputs of :func:`example_inputs` are generated again. Of other inputs, every tensor whose first
    (second) dimension is as large as the batch (sequence) is repeated or sliced to `size`; small
    tensors keep their values.
    """
    if hasattr(workload.kwargs, "resized"):
        return replace(workload, kwargs=workload.kwargs.resized(**{vary: size}))
    old_size, dim = size_of(workload, vary), 0 if vary == BATCH else 1
    copies = FakeCopies(workload.device, known=True)

    def resize(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() <= dim:
            return value
        if value.shape[dim] != old_size:
            return value
        rows = torch.arange(size) % old_size
        copied = copies.of(value)
        return copied.detach().index_select(dim, rows.to(copied.device))

    with workload.mode(), autograd.no_grad():
        args = pytree.tree_map(resize, workload.args)
        kwargs = {name: pytree.tree_map(resize, value) for name, value in workload.kwargs.items()}
    return replace(workload, args=args, kwargs=kwargs)
