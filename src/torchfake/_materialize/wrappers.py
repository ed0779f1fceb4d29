"""Tensors that wrap deferred ones: DTensors, and others such as quantized tensors.

Input: wrappers by name, whose inner tensors are to be materialized. Output: the same objects,
wrappers of real tensors. Invariant: a wrapper has the device, and a DTensor the dtype, of its inner
tensors, whatever interrupted the materialization; a wrapper that would differ from eager's is
refused before any change.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._materialize.checks import check_no_graph
from torchfake._sharding.local_tensors import NamedTensors
from torchfake._tensor.copies import FakeCopies, is_or_holds_fake
from torchfake._torch import subclass
from torchfake._torch.contexts import Restoring
from torchfake._torch.distributed import dtensors
from torchfake.errors import MaterializeError


def check_placement(shards: NamedTensors, device: torch.device | None) -> None:
    """Refuse DTensors whose shards would not be on the devices of the mesh, or that a graph holds.

    Args:
        shards: DTensors of deferred shards, by name.
        device: where their shards will be; None: where they were recorded.

    Raises:
        MaterializeError: naming the first DTensor that is refused.
    """
    for name, dtensor in shards:
        _check_mesh(name, dtensor, device)
        check_no_graph(name, dtensor)


def check_others(
    wrapped: NamedTensors, device: torch.device | None, dtype: torch.dtype | None
) -> None:
    """Refuse wrappers that a graph holds, that would have to be cast, or that cannot be moved.

    Args:
        wrapped: wrappers of deferred tensors that are no DTensors, by name.
        device: where the inner tensors will be; None: where they were recorded.
        dtype: the floating point dtype asked for.

    Raises:
        MaterializeError: naming the first wrapper that is refused.
    """
    for name, wrapper in wrapped:
        check_no_graph(name, wrapper)
        if dtype is not None and wrapper.is_floating_point() and wrapper.dtype != dtype:
            raise MaterializeError(
                f"{name} is a {type(wrapper).__name__} of dtype {wrapper.dtype}, and what it holds "
                f"cannot be cast: leave dtype= out, and call module.to({dtype}) afterwards"
            )
        if device is not None and wrapper.device != device:
            _check_can_be_moved(name, wrapper, device)


def ids_inside(wrapped: NamedTensors) -> set[int]:
    """The identities of the inner tensors, whose dtypes are not the wrapper's."""
    return {id(leaf) for _, wrapper in wrapped for leaf in subclass.leaf_tensors(wrapper)}


class updated_afterwards(Restoring):
    """Context in which inner tensors are materialized; on exit, their wrappers are updated."""

    def __init__(self, wrappers: NamedTensors) -> None:
        self._wrappers = wrappers

    def change(self) -> None: ...

    def restore(self) -> None:
        while self._wrappers:
            _, wrapper = self._wrappers[-1]
            if not is_or_holds_fake(wrapper):
                _update(wrapper)
            self._wrappers = self._wrappers[:-1]


def _check_mesh(name: str, dtensor: Any, device: torch.device | None) -> None:
    mesh = dtensor.device_mesh.device_type
    if device is not None and device.type not in (mesh, "cpu"):
        raise MaterializeError(
            f"{name} is sharded over a mesh of {mesh} devices, and cannot be on {device}: leave "
            f"device= out, or shard over a mesh of {device.type} devices"
        )


def _check_can_be_moved(name: str, wrapper: torch.Tensor, device: torch.device) -> None:
    """Refuse a wrapper whose fake copy cannot be moved: the class decides what
    ``__tensor_unflatten__`` makes of other inner tensors, and may keep a device of its own.
    """
    cause = None
    try:
        if FakeCopies(device).of(wrapper).device == device:
            return
    except RecursionError:
        raise
    except Exception as error:
        cause = error
    raise MaterializeError(
        f"{name} is a {type(wrapper).__name__} on {wrapper.device}, which cannot be created on "
        f"{device}: leave device= out, and call module.to({str(device)!r}) afterwards"
    ) from cause


def _update(wrapper: torch.Tensor) -> None:
    """Give a wrapper the device of its inner tensors, in place; a DTensor their dtype too."""
    is_dtensor = dtensors.is_dtensor(wrapper)
    if is_dtensor:
        made = dtensors.rewrapped(wrapper)
    elif all(wrapper.device == inner.device for inner in subclass.inner_tensors(wrapper)):
        return
    else:
        made = subclass.rewrapped(wrapper, lambda inner: inner)
        if made.requires_grad != wrapper.requires_grad:
            made.requires_grad_(wrapper.requires_grad)
    made.__dict__.update(wrapper.__dict__)
    made.grad = wrapper.grad
    subclass.move_hooks(wrapper, made)
    subclass.swap_tensors(wrapper, made)
    if is_dtensor:
        dtensors.materialized[wrapper] = True
        dtensors.set_spec_from(wrapper, made)
