"""What torch is told of DTensors of fakes, and a ledger of storages, while a plan is made.

Enters: the originals. Leaves: versions that know fakes. Invariant: on anything but fakes each is
the original, and outside the context so is every one of them.

C++ gives a DTensor the device of what it holds, which for a fake is its carrier.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchfake import _private
from torchfake._metadata import FakeUntypedStorage, storage_of
from torchfake._patches import Patch
from torchfake._private_distributed import shard_of
from torchfake._tensor import FakeTensor
from torchfake.distributed.ledger import RankLedger
from torchfake.distributed.shards import is_dtensor

_DEVICE_QUESTIONS = ("device", "is_cuda", "is_cpu", "is_meta")


def _of_the_shard(name: str) -> Any:
    def make(original: Any) -> Any:
        def answer(dtensor: Any) -> Any:
            shard = shard_of(dtensor)
            if isinstance(shard, FakeTensor):
                return getattr(shard, name)
            return original.__get__(dtensor)

        return property(answer)

    return make


def _get_device(original: Any) -> Any:
    def get_device(dtensor: Any) -> int:
        shard = shard_of(dtensor)
        return shard.get_device() if isinstance(shard, FakeTensor) else original(dtensor)

    return get_device


def _group_by_device(original: Any) -> Any:
    """How foreach optimizers sort tensors: DTensors as what they hold."""

    def replacement(lists: Any, with_indices: bool = False) -> Any:
        if not any(is_dtensor(tensor) for tensor in lists[0]):
            return original(lists, with_indices)
        held = [[shard_of(t) if is_dtensor(t) else t for t in column] for column in lists]
        groups = original(held, True)
        for key, (_, indices) in groups.items():
            columns = [[column[i] for i in indices] if column else [] for column in lists]
            groups[key] = columns, indices if with_indices else []
        return groups

    return replacement


def _resize(original: Any) -> Any:
    """FSDP frees and allocates unsharded parameters past all operators."""

    def resize_(storage: Any, size: int) -> Any:
        original(storage, size)
        ledger = _private.current_fake_mode()
        if isinstance(ledger, RankLedger):
            ledger.resized(storage_of(storage))
        return storage

    return resize_


def _record_stream(original: Any) -> Any:
    """FSDP1 tells the CUDA allocator of streams; C++ would refuse those that are not there."""
    return lambda tensor, stream: None


def _patches() -> list[Patch]:
    from torch.distributed.tensor import DTensor

    return [
        *(Patch(DTensor, name, _of_the_shard(name)) for name in _DEVICE_QUESTIONS),
        Patch(DTensor, "get_device", _get_device),
        Patch(FakeUntypedStorage, "resize_", _resize),
        Patch(FakeTensor, "record_stream", _record_stream),
        Patch(_private.bindings, "_group_tensors_by_device_and_dtype", _group_by_device),
    ]


@contextlib.contextmanager
def telling_of_fakes() -> Iterator[None]:
    """Context, inside a mode: its replacements of torch are what these are made of."""
    missing = object()
    with contextlib.ExitStack() as undo:
        for owner, name, make in _patches():
            own = vars(owner).get(name, missing)
            if own is missing:
                undo.callback(delattr, owner, name)
            else:
                undo.callback(setattr, owner, name, own)
            setattr(owner, name, make(getattr(owner, name)))
        yield
