"""The real tensors of fakes, which share bases, memory and version counters as the fakes do.

Input: fakes whose storage is real. Output: real tensors. Invariant: for autograd, the real tensor
of a view is a view of the real tensor of its base, whichever of the two is materialized first, or
alone; and real tensors share a version counter if their fakes did. So a backward pass that has
saved one notices a write to the other.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import memory
from torchfake._core.metadata import Metadata
from torchfake._tensor.fake_tensor import REAL_COUNTERPART, FakeTensor
from torchfake._torch import autograd, subclass


def real_tensor(fake: FakeTensor) -> torch.Tensor:
    """The real tensor that `fake` stands for, on the real storage of `fake`."""
    own = subclass.all_attributes(fake)
    made: torch.Tensor | None = own.pop(REAL_COUNTERPART, None)  # made as the base of a view
    recorded: Any = fake._fake_storage.deferred
    geometry = memory.view_of(recorded.real, fake._fake_meta)
    if made is None or isinstance(made, FakeTensor):
        return _new(fake, geometry)
    subclass.set_data(made, geometry)
    return made


def remember(base: torch.Tensor, counterpart: torch.Tensor) -> None:
    """Keep `counterpart` as the base of materialized views of `base`, as long as `base` lives."""
    subclass.all_attributes(base)[REAL_COUNTERPART] = counterpart


def _new(fake: FakeTensor, geometry: torch.Tensor) -> torch.Tensor:
    """A tensor on `geometry` with the base of views, or the version counter, that `fake` has."""
    if fake.is_inference():
        if autograd.version_of(fake) is None:
            return geometry
        with torch.inference_mode(False):
            return geometry.detach()  # as ``data``: it may be written outside of inference mode
    base = fake._base
    if isinstance(base, FakeTensor) and autograd.version_of(base) is not None:
        made = autograd.view_like(_base_of_views(base), fake)
    else:
        made = _with_version_counter(fake)
    subclass.set_data(made, geometry)
    return made


def _base_of_views(fake: FakeTensor) -> torch.Tensor:
    """The real tensor of `fake`, a base of views, whether or not it has been materialized."""
    made: torch.Tensor | None = subclass.all_attributes(fake).get(REAL_COUNTERPART)
    if isinstance(made, FakeTensor):  # real for a while, and deferred again
        return _base_of_views(made)
    if made is None:
        made = _new(fake, _geometry_of_base(fake))
        if fake.requires_grad:
            made.requires_grad_()  # without a history: views made in no_grad take no part in it
        remember(fake, made)
    return made


def _geometry_of_base(fake: FakeTensor) -> torch.Tensor:
    recorded: Any = fake._fake_storage.deferred
    if recorded is None or recorded.real is None:  # the base was given other memory than its views
        return torch.empty(0, dtype=fake._fake_meta.dtype)
    record: Metadata = fake._fake_meta
    return memory.view_of(recorded.real, record)


def _with_version_counter(fake: FakeTensor) -> torch.Tensor:
    """A tensor without memory, with the real version counter in place of that of `fake`."""
    recorded: Any = fake._fake_storage.deferred
    made = torch.empty(0, dtype=fake._fake_meta.dtype)
    version = autograd.version_of(fake)
    if recorded is None or version is None:
        return made
    for of_fakes, of_real in recorded.version_counters:
        if autograd.share_version_counter(of_fakes, fake):
            return subclass.make_subclass(torch.Tensor, of_real)
    autograd.set_version(made, version)
    recorded.version_counters += ((autograd.version_counter_of(fake), made.detach()),)
    return made
