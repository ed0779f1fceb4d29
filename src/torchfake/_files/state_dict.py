"""The tensors of a module that are saved: collected, checked, and digested.

Input: a module, deferred, real, or some of both; sharded or not. Output: the tensors of its
``state_dict()`` by name, and one digest of them all. Invariant: a tensor that safetensors files
cannot hold is refused by name, before anything is written, and on all ranks if on one. The digest
depends on the values, computed or not, but not on the sharding if the source of shards is known.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._files.safetensors import check_can_be_saved
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.digest import (
    digest_of_contents,
    digest_of_record,
    digest_of_values,
    hash_parts,
)
from torchfake._sharding.local_slices import local_slices_of
from torchfake._sharding.local_tensors import check_recorded, deferred_shards
from torchfake._sharding.provenance import shard_source, source_metadata
from torchfake._sharding.rank_agreement import check_agreement
from torchfake._sharding.shared_errors import on_all_ranks
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch.distributed import dtensors
from torchfake.errors import CheckpointError, RankMismatchError

State = dict[str, torch.Tensor]


def tensors_to_save(module: torch.nn.Module) -> State:
    """The tensors of ``module.state_dict()``, checked.

    Raises:
        CheckpointError: if an entry is not a tensor, or not one that a safetensors file can hold.
        NotDeferredError: for a fake that was not recorded.
    """
    state = module.state_dict()
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(
                f"{name} is a {type(tensor).__name__}, and safetensors files hold only tensors: "
                "save it in another file beside them"
            )
        check_recorded(name, dtensors.local_tensor_of(tensor))
    check_can_be_saved(state)
    return state


def is_sharded(state: State) -> bool:
    """Whether any tensor in `state` is a DTensor."""
    return any(map(dtensors.is_dtensor, state.values()))


def check_ranks(state: State) -> None:
    """Check that all ranks are about to save the same module. All ranks must call this.

    Raises:
        RankMismatchError: on all ranks, if they differ.
        CheckpointError: if it is not known which elements a shard has, or if the other ranks are
            simulated.
    """
    if dtensors.has_simulated_ranks():
        raise CheckpointError(
            "the process group is fake, so the shards of the other ranks would not be written: run "
            "this on real ranks, or save the module before it is sharded"
        )
    on_all_ranks(lambda: [local_slices_of(name, tensor) for name, tensor in state.items()])
    signatures = hash_parts(
        [(n, str(t.dtype), tuple(t.shape), dtensors.is_dtensor(t)) for n, t in state.items()]
    )
    gathered = dtensors.gather_from_ranks(signatures)
    others = [rank for rank, each in enumerate(gathered) if each != signatures]
    if others:
        raise RankMismatchError(
            f"ranks {', '.join(map(str, others[:8]))} would write other tensors than rank "
            f"{dtensors.rank_and_world_size()[0]}: all ranks have to save the same module, "
            "sharded in the same way. Nothing was written"
        )
    check_agreement(deferred_shards(state.items()))


# Digests.


def deferred_state_of(tensor: torch.Tensor) -> DeferredState | None:
    """The deferred state of a tensor's storage; None for a real tensor."""
    if not is_deferred_fake(tensor):
        return None
    assert isinstance(tensor, FakeTensor)
    deferred = tensor._fake_storage.deferred
    assert isinstance(deferred, DeferredState)
    return deferred


def digest_of(state: State) -> str:
    """The digest of all names and values, computed or not, in hexadecimal digits."""
    return hash_parts([(name, _digest_of_tensor(tensor)) for name, tensor in state.items()]).hex()


def _digest_of_tensor(tensor: torch.Tensor) -> bytes:
    deferred = deferred_state_of(tensor)
    if deferred is None:
        return digest_of_values(tensor)
    assert isinstance(tensor, FakeTensor)
    return hash_parts(digest_of_contents(deferred.contents), digest_of_record(tensor._fake_meta))


def digest_on_all_ranks(state: State) -> str:
    """The digest of a sharded module: that of :func:`digest_of` before the module was sharded, if
    the source of all shards is known; otherwise it also covers the shards of all ranks. All ranks
    must call this.
    """
    full: list[tuple[str, bytes]] = []
    of_shards: list[tuple[str, bytes]] = []
    for name, tensor in state.items():
        if not dtensors.is_dtensor(tensor):
            full.append((name, _digest_of_tensor(tensor)))
            continue
        source_digest = _digest_of_source(tensor)
        full.append((name, source_digest or b""))
        shard = dtensors.shard_of(tensor)
        if source_digest is None and shard.numel():
            of_shards.append((name, _digest_of_tensor(shard)))
    gathered = dtensors.gather_from_ranks(hash_parts(of_shards))
    digest = hash_parts(full)
    if any(each != hash_parts([]) for each in gathered):
        digest = hash_parts(digest, gathered)
    # The digest of rank 0 counts: other ranks may have empty shards, whose source is not known.
    return str(dtensors.broadcast_from_first(digest.hex()))


def _digest_of_source(dtensor: Any) -> bytes | None:
    """The digest of a deferred tensor before it was sharded; None if its source is not known."""
    source = shard_source(dtensor)
    metadata = None if source is None else source_metadata(dtensor, source)
    if source is None or metadata is None:
        return None
    return hash_parts(digest_of_contents(source.contents), digest_of_record(metadata))
