"""Which kinds of tensors are among the arguments of a call.

Input: the arguments of an operation. Output: :class:`CallArguments`, and the arguments with real
tensors in place of fakes that have been materialized. Invariant: nothing is recorded, and no
argument is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchfake._core.metadata import DEFERRED, metadata_of
from torchfake._core.storage import Storage
from torchfake._graph.deferred_storage import deferred_alias
from torchfake._graph.externals import MAX_COPIED_BYTES
from torchfake._operators.operator_call import Args, Kwargs, tensors_in
from torchfake._replay.first_use import value_of
from torchfake._tensor import known_values
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake, new_fake
from torchfake._torch import autograd, dispatcher

RunOnFakes = Callable[[Any, Args, Kwargs], Any]
"""Runs an operation, given with its arguments, on fakes."""


class CallArguments:
    """The tensors among the arguments of a call, and the kinds of tensors among them."""

    __slots__ = (
        "has_deferred",
        "has_materialized",
        "has_real",
        "has_unknown_values",
        "mark",
        "tensors",
    )

    def __init__(self, args: Args, kwargs: Kwargs, mark: int) -> None:
        self.tensors = tensors_in(args, kwargs)
        self.has_deferred = self.has_materialized = self.has_real = False
        self.has_unknown_values = False  # of a meta tensor, or of a plain fake
        self.mark = mark  # the mark that results get
        for tensor in self.tensors:
            if type(tensor) not in FAKE_TYPES and not isinstance(tensor, FakeTensor):
                if tensor.is_meta:
                    self.has_unknown_values = True
                else:
                    self.has_real = True
                continue
            storage = tensor._fake_storage  # type: ignore[attr-defined]
            deferred: Any = storage.deferred
            if deferred is None:
                if not known_values.is_known(tensor):
                    self.has_unknown_values = True
                continue
            self.has_deferred = True
            if deferred.real is not None:
                self.has_materialized = True
            if deferred.mark > self.mark:
                self.mark = deferred.mark


def has_deferred_arguments(args: Args, kwargs: Kwargs) -> bool:
    """Whether there is a deferred fake among the arguments."""
    return any(is_deferred_fake(tensor) for tensor in tensors_in(args, kwargs))


def deferred_fakes(tensors: Sequence[torch.Tensor]) -> list[FakeTensor]:
    """The deferred fakes among `tensors`."""
    return [t for t in tensors if is_deferred_fake(t)]  # type: ignore[misc]


def is_real(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and not tensor.is_meta


def is_materialized(tensor: Any) -> bool:
    """Whether a tensor is a fake object whose deferred storage already has real memory."""
    return is_deferred_fake(tensor) and tensor._fake_storage.deferred.real is not None


def is_alias(tensor: Any) -> bool:
    """Whether a tensor is a fake made by :func:`fake_aliases`. Views of such a fake stay fakes."""
    return is_materialized(tensor) and tensor._fake_storage.deferred.alias_of is not None


def fake_aliases(value: Any) -> Any:
    """Replace each real tensor in `value` by a fake that reads and writes the tensor's memory."""
    if isinstance(value, (list, tuple)):
        return type(value)(fake_aliases(item) for item in value)
    if not isinstance(value, torch.Tensor) or not is_real(value):
        return value
    storage = Storage(value.untyped_storage().nbytes(), value.device)
    storage.deferred = deferred_alias(value, DEFERRED)
    return new_fake(metadata_of(value, value.device), storage)


def has_unknown_value(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no values for a replay: a meta tensor, or a fake of unknown value."""
    if not isinstance(tensor, FakeTensor):
        return tensor.is_meta
    return tensor._fake_storage.deferred is None and not known_values.is_known(tensor)


def count_writes(mutated: list[torch.Tensor]) -> None:
    """Increment the version counters of real tensors that share the memory of `mutated` fakes: a
    backward pass that has saved such a real tensor then refuses to use the tensor.
    """
    for fake in mutated:
        if is_materialized(fake) and not fake.is_inference():
            deferred: Any = fake._fake_storage.deferred  # type: ignore[attr-defined]
            for of_fakes, of_real in deferred.version_counters:
                if autograd.share_version_counter(of_fakes, fake):
                    torch.autograd.graph.increment_version(of_real)


def have_values(args: Args) -> bool:
    """Whether all tensors among the arguments are real, or have values that a replay computes."""
    return not any(map(has_unknown_value, tensors_in(args, {})))


def with_real_tensors(arg: Any, *, copied: bool = False) -> Any:
    """An argument, with real tensors in place of fakes that have been materialized. With `copied`,
    small tensors are cloned: the program may write the original before a replay reads it.
    """
    if isinstance(arg, dict):
        return {name: with_real_tensors(item, copied=copied) for name, item in arg.items()}
    if isinstance(arg, (list, tuple)):
        return [with_real_tensors(item, copied=copied) for item in arg]
    if not is_materialized(arg):
        return arg
    real = value_of(arg._fake_storage.deferred, arg._fake_meta)
    is_small = real.numel() * real.element_size() <= MAX_COPIED_BYTES
    if not (copied and is_small):
        return real
    with dispatcher.as_eager():
        return real.clone()
