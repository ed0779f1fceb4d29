"""Patches of torch that are installed while a rank is run.

Input: functions and properties of torch. Output: replacements that support DTensors of fakes, and
report to the rank's tracker what no operator shows. Invariant: on anything but fakes a replacement
calls the original; outside the context nothing is patched. Called by: ``distributed/run_rank``.

C++ gives a DTensor the device of the tensor that it wraps, which for a fake is the carrier's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchfake._patches.patch import Patch, PatchSet
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._torch import backends, dispatcher
from torchfake._torch.distributed import is_dtensor, local_tensor_of, shard_of
from torchfake.distributed.rank_tracker import RankTracker

_DEVICE_ATTRIBUTES = ("device", "is_cuda", "is_cpu", "is_meta")


def _attribute_of_shard(name: str) -> Any:
    """What makes of an attribute of DTensors one that is read from a fake shard."""

    def replacement(original: Any) -> Any:
        def get(dtensor: Any) -> Any:
            shard = shard_of(dtensor)
            if isinstance(shard, FakeTensor):
                return getattr(shard, name)
            return original.__get__(dtensor)

        return property(get)

    return replacement


def _get_device(original: Any) -> Any:
    def get_device(dtensor: Any) -> int:
        shard = shard_of(dtensor)
        return shard.get_device() if isinstance(shard, FakeTensor) else original(dtensor)

    return get_device


def _group_by_device(original: Any) -> Any:
    """Foreach optimizers group tensors by device: of DTensors, by that of their shards."""

    def replacement(lists: Any, with_indices: bool = False) -> Any:
        if not any(is_dtensor(tensor) for tensor in lists[0]):
            return original(lists, with_indices)
        local = [list(map(local_tensor_of, column)) for column in lists]
        groups = original(local, True)
        for key, (_, indices) in groups.items():
            columns = [[column[i] for i in indices] if column else [] for column in lists]
            groups[key] = columns, indices if with_indices else []
        return groups

    return replacement


def _resize(original: Any) -> Any:
    """FSDP allocates and frees unsharded parameters without an operator: notify the tracker."""

    def resize_(storage: Any, size: int) -> Any:
        original(storage, size)
        tracker = dispatcher.current_fake_mode()
        if isinstance(tracker, RankTracker):
            tracker.resized(storage._fake_storage)
        return storage

    return resize_


def _record_stream(original: Any) -> Any:
    """FSDP1 passes streams to the CUDA allocator; C++ would refuse those that do not exist."""
    return lambda tensor, stream: None


def _patches() -> list[Patch]:
    from torch.distributed.tensor import DTensor

    return [
        *(Patch(DTensor, name, _attribute_of_shard(name)) for name in _DEVICE_ATTRIBUTES),
        Patch(DTensor, "get_device", _get_device),
        Patch(FakeUntypedStorage, "resize_", _resize),
        Patch(FakeTensor, "record_stream", _record_stream),
        Patch(backends.bindings, "_group_tensors_by_device_and_dtype", _group_by_device),
    ]


@contextlib.contextmanager
def dtensors_of_fakes() -> Iterator[None]:
    """Context in which torch supports DTensors of fakes; these wrap the patches of a fake mode."""
    patches = PatchSet()
    patches.install(_patches())
    try:
        yield
    finally:
        patches.uninstall()
