"""What is recorded, or let go of, before deferred tensors are replayed.

Input: deferred fakes that can be materialized. Output: the same fakes, as they will be: leaves of
no graph, of the dtype asked for, on memory of their own size. Invariant: the values that a replay
gives are the same, but for casts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from torchfake._core import source_location
from torchfake._core.metadata import Metadata
from torchfake._graph.deferred_storage import DeferredState
from torchfake._materialize.collect import Attribute
from torchfake._sharding.local_tensors import NamedTensors
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake, new_fake, rebind
from torchfake._torch import autograd, distributed, subclass
from torchfake.errors import printable


def ids_in_histories(attributes: Iterable[Attribute]) -> set[int]:
    """Identities of the attributes that were computed from parameters, and of these parameters.

    The history of such an attribute cannot be materialized, and its graph holds the parameters:
    :func:`release_histories` lets go of both.
    """
    found: set[int] = set()
    seen: set[Any] = set()
    for attribute in attributes:
        waiting = _last_nodes(attribute.fake)
        found |= {id(attribute.fake)} if waiting else set()
        found |= {id(attribute.fake._base)} if _is_forbidden_result(attribute.fake) else set()
        while waiting:
            node: Any = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            found.add(id(getattr(node, "variable", None)))
            waiting += [before for before, _ in node.next_functions]
    return found


def _last_nodes(fake: FakeTensor) -> list[Any]:
    """The nodes of autograd's graph from which all others in the history of `fake` are reached."""
    if _is_forbidden_result(fake):
        return [autograd.history_of(fake._base)]  # type: ignore[arg-type]
    node = autograd.history_of(fake)
    return [] if node is None else [node]


def _is_forbidden_result(fake: FakeTensor) -> bool:
    """Whether `fake` is a view with a history that autograd refuses to give: its base was written
    since. It still holds the graph.
    """
    return fake.requires_grad and autograd.is_forbidden_view(fake)


def release_histories(attributes: Iterable[Attribute]) -> None:
    """Make attributes that were computed from parameters leaves, in place.

    torch's own hooks (``weight_norm``, pruning) compute them again in each forward pass.
    """
    for name, fake, owner in attributes:
        if _is_forbidden_result(fake):
            rebind_as_view(fake)
        if autograd.history_of(fake) is None:
            continue
        if not owner._forward_pre_hooks:
            warnings.warn(
                f"{printable(name)} was computed from parameters and is materialized without its "
                "autograd history: gradients do not flow through it. Compute it in forward()",
                stacklevel=source_location.user_stacklevel(),
            )
        leaf = new_fake(fake._fake_meta, fake._fake_storage, type(fake))
        subclass.all_attributes(leaf).update(subclass.all_attributes(fake))
        subclass.swap_tensors(fake, leaf)


def rebind_as_view(fake: FakeTensor) -> None:
    """Let a view that autograd refuses to use let go of the graph; it is refused as before."""
    view: Any = autograd.view_like(fake._base, fake)  # type: ignore[arg-type]
    rebind(view, fake._fake_meta, fake._fake_storage)
    subclass.all_attributes(view).update(subclass.all_attributes(fake))
    subclass.swap_tensors(fake, view)


def give_own_memory(shards: NamedTensors) -> None:
    """Record a copy of shards that look at a small part of their storage.

    A shard that was only split off would keep the memory of the whole. Those that share memory
    still do afterwards.
    """
    copies: dict[tuple[DeferredState, Metadata], torch.Tensor] = {}
    with autograd.no_grad():
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
    """Record the cast of floating point and complex tensors, as ``module.to(dtype)`` does.

    Their gradients are cast too.
    """
    with autograd.no_grad():
        for fake in fakes:
            own = fake._fake_meta.dtype
            if (own.is_floating_point or own.is_complex) and own != dtype:
                grad = autograd.gradient_of(fake)
                fake.data = fake.data.to(dtype)
                if is_deferred_fake(grad):
                    cast([grad], dtype)  # type: ignore[list-item]
