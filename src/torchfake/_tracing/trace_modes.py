"""The modes in which fake copies are made and traced.

Input: the tensors of a module and its inputs, which tell how many CUDA devices are needed.
Output: contexts: a fake mode that records nothing, a mode for the constants that ``forward``
creates, and a context in which proxies take precedence over fakes.
Invariant: when a context is left, this thread has the modes that it had before.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchfake._core import modes
from torchfake._tensor.copies import all_tensors
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import dispatcher, subclass
from torchfake._torch.contexts import Setting
from torchfake.deferred import deferred_mode
from torchfake.fake import fake_mode


def tensors_in(*trees: Any) -> list[torch.Tensor]:
    """The tensors in trees of inputs and modules, including unregistered tensors of modules."""
    found: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(trees):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, nn.Module):
            found += all_tensors(leaf, set())
    return found


def _num_cuda_devices(tensors: list[torch.Tensor]) -> int:
    """The number of CUDA devices in the current mode, or more if a tensor is on a higher index."""
    state = modes.current()
    machine = None if state is None else state.accelerator
    is_cuda = machine is not None and machine.device_type == "cuda"
    num_in_mode = machine.num_devices if machine is not None and is_cuda else 0
    indices = [tensor.get_device() for tensor in tensors if tensor.is_cuda]
    return max([num_in_mode, *(index + 1 for index in indices)])


def unrecorded_fake_mode(tensors: list[torch.Tensor]) -> Any:
    """A mode in which new tensors are fake and none is recorded; the current mode if it is one."""
    import torch._dynamo  # noqa: F401  # make_fx would import it, and keep the patched functions

    num_cuda = _num_cuda_devices(tensors)
    is_on = modes.current() is not None and not modes.is_recording()
    if not is_on:
        return _TracedMode(fake_cuda=num_cuda)
    return Setting(dispatcher.only_lift_cpu, dispatcher.set_only_lift_cpu, num_cuda > 0)


class _TracedMode(fake_mode):
    """A mode for torch's tracers: without CUDA, constants would be moved to the CPU."""

    def __enter__(self) -> _TracedMode:
        super().__enter__()
        dispatcher.set_only_lift_cpu(modes.thread.modes[-1].accelerator is not None)
        return self


def mode_for_constants(tensors: list[torch.Tensor]) -> Any:
    """A mode that has the tensors' CUDA devices, for the constants that ``forward`` creates.

    Constants of a deferred module are recorded, so that they can be materialized with it.
    """
    num_cuda = _num_cuda_devices([t for t in tensors if isinstance(t, FakeTensor)])
    if modes.current() is not None or not num_cuda:
        return contextlib.nullcontext()
    is_deferred = any(map(is_deferred_fake, tensors))
    return (deferred_mode if is_deferred else fake_mode)(fake_cuda=num_cuda)


def prefer_proxies() -> Setting:
    """Context: a torch function called with a proxy and a fake is handled by the proxy."""
    own = vars(modes.thread)

    def set_override(value: Any) -> None:
        if value is None:
            own.pop("torch_function", None)
        else:
            own["torch_function"] = value

    return Setting(
        lambda: own.get("torch_function"), set_override, subclass.disabled_torch_function
    )
