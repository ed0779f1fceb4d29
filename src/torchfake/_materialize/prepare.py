"""Steps before the replay of deferred tensors: releasing histories, recording copies and casts.

Input: deferred fakes that can be materialized. Output: the same fakes: leaves outside any graph, of
the requested dtype, on memory of their own size. Invariant: a replay gives the same values, except
for casts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

from torchfake._core import source_location
from torchfake._core.metadata import Metadata
from torchfake._graph.deferred_storage import DeferredState
from torchfake._materialize.collect import Attribute
from torchfake._sharding.local_tensors import NamedTensors
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake, new_fake, rebind
from torchfake._torch import autograd, subclass
from torchfake._torch.distributed import dtensors
from torchfake.errors import printable


def ids_in_histories(attributes: Iterable[Attribute]) -> set[int]:
    """Identities of the attributes that were computed from parameters, and of these parameters.

    The history of such an attribute cannot be materialized, and its graph holds the parameters:
    :func:`release_histories` releases both.
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
    """Whether `fake` is a view that still holds its graph, but whose history autograd refuses to
    give, since the base was written afterwards.
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


_Hook = Callable[[torch.nn.Module, Any], Any]


def computed_by_hooks(attributes: Iterable[Attribute]) -> list[tuple[_Hook, torch.nn.Module]]:
    """The hooks of legacy ``weight_norm`` and of pruning that have computed some of `attributes`,
    with a history, and their modules.
    """
    owners: dict[int, torch.nn.Module] = {}
    for attribute in attributes:
        if autograd.history_of(attribute.fake) is not None:
            owners[id(attribute.owner)] = attribute.owner
    if not owners:
        return []
    return [
        (hook, owner)
        for owner in owners.values()
        for hook in owner._forward_pre_hooks.values()
        if isinstance(hook, (WeightNorm, BasePruningMethod))
    ]


def compute_again(hooks: Iterable[tuple[_Hook, torch.nn.Module]]) -> None:
    """Let hooks compute their weight of the real parameters, so that it has the history that it
    has in eager, where it is no leaf. Its dtype and its values stay: eager has computed it before
    the parameters were cast, or written.
    """
    for hook, owner in hooks:
        before = _plain_tensors(owner)
        _compute(hook, owner)
        changed = {name for name, t in _plain_tensors(owner).items() if t is not before.get(name)}
        for name in changed & before.keys():
            if vars(owner)[name].dtype != before[name].dtype:
                with _cast_for_now(owner, before[name].dtype):
                    _compute(hook, owner)
            vars(owner)[name].data.copy_(before[name])


def _plain_tensors(owner: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: t for name, t in vars(owner).items() if isinstance(t, torch.Tensor)}


def _compute(hook: _Hook, owner: torch.nn.Module) -> None:
    with known_values.without_fake_mode(), torch.enable_grad():
        hook(owner, ())


@contextmanager
def _cast_for_now(owner: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """The floating point tensors of `owner` are of `dtype` within this context."""
    tensors = [*owner.parameters(recurse=False), *owner.buffers(recurse=False)]
    data = [(t, t.data) for t in tensors if t.is_floating_point()]
    try:
        for tensor, own in data:
            tensor.data = own.to(dtype)
        yield
    finally:
        for tensor, own in data:
            tensor.data = own


def rebind_as_view(fake: FakeTensor) -> None:
    """Release the graph of a view that autograd refuses to use, and goes on to refuse."""
    view: Any = autograd.view_like(fake._base, fake)  # type: ignore[arg-type]
    rebind(view, fake._fake_meta, fake._fake_storage)
    subclass.all_attributes(view).update(subclass.all_attributes(fake))
    subclass.swap_tensors(fake, view)


def give_own_memory(shards: NamedTensors) -> None:
    """Record copies of shards that are views of a small part of their storage.

    As a view, a shard would keep the memory of the full tensor. Shards that share memory still do
    afterwards.
    """
    copies: dict[tuple[DeferredState, Metadata], torch.Tensor] = {}
    with autograd.no_grad():
        for _, dtensor in shards:
            fake: Any = dtensors.shard_of(dtensor)
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
