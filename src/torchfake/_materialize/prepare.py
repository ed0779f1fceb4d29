"""What is recorded, or let go of, before deferred tensors are replayed.

Input: deferred fakes that can be materialized. Output: the same fakes, as they will be: leaves of
no graph, of the dtype asked for, on memory of their own size. Invariant: the values that a replay
gives are the same, but for casts. Called by: ``pipeline``, once everything has been checked.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from torchfake._core.metadata import Metadata
from torchfake._graph.deferred_storage import DeferredState
from torchfake._materialize.collect import Attribute, NamedTensors
from torchfake._tensor.fake_tensor import FakeTensor, new_fake
from torchfake._torch import distributed, subclass


def ids_in_histories(attributes: Iterable[Attribute]) -> set[int]:
    """Identities of the attributes that were computed from parameters, and of these parameters.

    The history of such an attribute cannot be materialized, and its graph holds the parameters:
    :func:`release_histories` lets go of both.
    """
    found: set[int] = set()
    seen: set[Any] = set()
    for attribute in attributes:
        waiting = [attribute.fake.grad_fn]
        found |= {id(attribute.fake)} if waiting[0] is not None else set()
        while waiting:
            node: Any = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            found.add(id(getattr(node, "variable", None)))
            waiting += [before for before, _ in node.next_functions]
    return found


def release_histories(attributes: Iterable[Attribute]) -> None:
    """Make attributes that were computed from parameters leaves, in place.

    torch's own hooks (``weight_norm``, pruning) compute them again in each forward pass.
    """
    for name, fake, owner in attributes:
        if fake.grad_fn is None:
            continue
        if not owner._forward_pre_hooks:
            warnings.warn(
                f"{name} was computed from parameters, and is real without that history: gradients "
                "will not flow through it. Compute it in forward()",
                stacklevel=4,
            )
        leaf = new_fake(fake._fake_meta, fake._fake_storage, type(fake))
        leaf.__dict__.update(fake.__dict__)
        subclass.swap_tensors(fake, leaf)


def give_own_memory(shards: NamedTensors) -> None:
    """Record a copy of shards that look at a small part of their storage.

    A shard that was only split off would keep the memory of the whole. Those that share memory
    still do afterwards.
    """
    copies: dict[tuple[DeferredState, Metadata], torch.Tensor] = {}
    with torch.no_grad():
        for _, dtensor in shards:
            fake: Any = distributed.shard_of(dtensor)
            recorded, record = fake._fake_storage.deferred, fake._fake_meta
            if recorded.real is None and 2 * record.num_bytes <= recorded.contents.cell.num_bytes:
                if (recorded, record) not in copies:
                    copies[recorded, record] = _copied_for_sharding(fake)
                fake.data = copies[recorded, record]


def _copied_for_sharding(fake: Any) -> torch.Tensor:
    copied = fake.detach().clone()
    copied._fake_storage.deferred.contents.op.is_sharding = True
    return copied  # type: ignore[no-any-return]


def cast(fakes: Iterable[FakeTensor], dtype: torch.dtype) -> None:
    """Record the cast of floating point and complex tensors, as ``module.to(dtype)`` does."""
    with torch.no_grad():
        for fake in fakes:
            own = fake._fake_meta.dtype
            if (own.is_floating_point or own.is_complex) and own != dtype:
                fake.data = fake.detach().to(dtype)
