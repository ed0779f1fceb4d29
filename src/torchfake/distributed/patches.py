"""Patches of torch that are installed while a rank is run.

Input: functions and properties of torch. Output: replacements that support DTensors of fakes, and
report to the rank's tracker what no operator shows. Invariant: on anything but fakes a replacement
calls the original; outside the context nothing is patched.

C++ gives a DTensor the device of the tensor that it wraps, which for a fake is the carrier's.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from torch.nn import functional

from torchfake._patches.patch import Patch, Patched
from torchfake._tensor.attention import scaled_dot_product_attention
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._tensor.torch_function import override_switch
from torchfake._torch import backends, dispatcher
from torchfake._torch.distributed import is_dtensor, local_tensor_of
from torchfake.distributed.pipelines.exchanges import patches_of_exchanges
from torchfake.distributed.rank_tracker import RankTracker
from torchfake.distributed.replicas.replacements import replicas_of_fakes


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


def _switched_by_autocast(original: Any) -> Any:
    """C++ autocast asks a DTensor for the carrier's device too: it is cast where fakes are."""
    return override_switch


def _attention(original: Any) -> Any:
    """C++ chooses the kernel of attention by the device that it knows: of DTensors, the carrier's.
    Context parallelism wraps this function, and sends the keys and values of the chosen kernel.
    """

    @functools.wraps(original)  # context parallelism assigns by name
    def replacement(query: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_dtensor(query):
            return original(query, *args, **kwargs)
        return scaled_dot_product_attention(original, query, *args, **kwargs)

    return replacement


def _patches() -> list[Patch]:
    from torch.distributed.tensor import DTensor

    return [
        Patch(DTensor, "__torch_function__", _switched_by_autocast),
        Patch(FakeUntypedStorage, "resize_", _resize),
        Patch(backends.bindings, "_group_tensors_by_device_and_dtype", _group_by_device),
        Patch(functional, "scaled_dot_product_attention", _attention),
        *patches_of_exchanges(),
        *replicas_of_fakes(),
    ]


def dtensors_of_fakes() -> Patched:
    """Context in which torch supports DTensors of fakes; these wrap the patches of a fake mode."""
    importlib.import_module("torch.distributed.tensor")
    return Patched(_patches())
