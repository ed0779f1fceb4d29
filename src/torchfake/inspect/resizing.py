"""Inputs as they are, for another batch or another length.

Enters: the arguments of a subject. Leaves: the same with one size changed, as fakes. Invariant:
what varies with the size is found by the size itself, and nothing else is touched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchfake import fake
from torchfake.errors import InputsError
from torchfake.inspect.subject import Subject, tensors_in

BATCH, SEQ = "batch", "seq"


def size_of(subject: Subject, which: str) -> int:
    """How large the batch, or the sequence, is now.

    Raises:
        InputsError: if no input has such a size.
    """
    known = getattr(subject.kwargs, which, None)  # of example_inputs
    if isinstance(known, int):
        return known
    tensors = tensors_in((subject.args, dict(subject.kwargs)))
    dim = 0 if which == BATCH else 1
    for tensor in tensors:
        if tensor.dim() > dim and (which == BATCH or not tensor.is_floating_point()):
            return int(tensor.shape[dim])
    wanted = "first dimension" if which == BATCH else "integer tensor [batch, seq, ...]"
    raise InputsError(f"no input has a {which}: it would be the {wanted}")


def resized(subject: Subject, which: str, size: int) -> Subject:
    """The same with a batch, or a sequence, of `size`.

    Inputs of :func:`example_inputs` are made anew. Of others, every tensor whose first (second)
    dimension is that of the batch (sequence) is repeated or cut; small ones keep their values.
    """
    if hasattr(subject.kwargs, "resized"):
        return replace(subject, kwargs=subject.kwargs.resized(**{which: size}))
    now, dim = size_of(subject, which), 0 if which == BATCH else 1
    twins = fake.Twins(subject.device, known=True)

    def changed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() <= dim or value.shape[dim] != now:
            return value
        rows = torch.arange(size) % now
        twin = twins.of(value)
        return twin.detach().index_select(dim, rows.to(twin.device))

    with torch.no_grad(), fake.fake_mode(fake_cuda=subject.machine()):
        args = pytree.tree_map(changed, subject.args)
        kwargs = {name: pytree.tree_map(changed, value) for name, value in subject.kwargs.items()}
    return replace(subject, args=args, kwargs=kwargs)
