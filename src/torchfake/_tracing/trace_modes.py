"""The modes in which fake copies are made and traced.

Input: the tensors of a module and its inputs, which tell how many CUDA devices are needed.
Output: contexts: a fake mode that records nothing, a mode for the constants that ``forward``
makes, no mode at all, and one in which proxies take precedence over fakes. Invariant: when a
context is left, this thread has the modes that it had before. Called by: ``torchfake.fx`` and
``_tracing/fake_copies``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchfake._core import modes
from torchfake._tensor import torch_function
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import dispatcher, subclass
from torchfake.deferred import deferred_mode
from torchfake.fake import all_tensors, fake_mode


def tensors_in(*trees: Any) -> list[torch.Tensor]:
    """The tensors in trees of inputs and of modules, registered in the module or not."""
    found: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(trees):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, nn.Module):
            found += all_tensors(leaf, set())
    return found


def _num_cuda_devices(tensors: list[torch.Tensor]) -> int:
    """How many the current mode has, or more if a tensor is on a device of a higher index."""
    state = modes.current()
    num_in_mode = 0 if state is None or state.cuda is None else state.cuda.num_devices
    indices = [tensor.get_device() for tensor in tensors if tensor.is_cuda]
    return max([num_in_mode, *(index + 1 for index in indices)])


@contextlib.contextmanager
def unrecorded_fake_mode(tensors: list[torch.Tensor]) -> Iterator[None]:
    """A mode in which every new tensor is fake and none is recorded.

    If the current mode is already such a mode, it is used.
    """
    import torch._dynamo  # noqa: F401  # make_fx would import it, and keep the patched functions

    num_cuda = _num_cuda_devices(tensors)
    is_on = modes.current() is not None and not modes.is_recording()
    with contextlib.nullcontext() if is_on else fake_mode(fake_cuda=num_cuda):
        # Otherwise a constant would be moved to the CPU.
        only_lift_cpu = dispatcher.swap_only_lift_cpu(num_cuda > 0)
        try:
            yield
        finally:
            dispatcher.swap_only_lift_cpu(only_lift_cpu)


def mode_for_constants(tensors: list[torch.Tensor]) -> Any:
    """A mode that has the tensors' CUDA devices, for the constants that ``forward`` makes.

    Constants of a deferred module are recorded, so that they can be materialized with it.
    """
    num_cuda = _num_cuda_devices([t for t in tensors if isinstance(t, FakeTensor)])
    if modes.current() is not None or not num_cuda:
        return contextlib.nullcontext()
    is_deferred = any(map(is_deferred_fake, tensors))
    return (deferred_mode if is_deferred else fake_mode)(fake_cuda=num_cuda)


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Context: no mode of torchfake is on, on this thread."""
    outer_modes, modes.thread.modes = modes.thread.modes, []
    slot = dispatcher.swap_fake_mode(None)
    only_lift_cpu = dispatcher.swap_only_lift_cpu(False)
    torch_function.update_override()
    try:
        yield
    finally:
        modes.thread.modes = outer_modes
        dispatcher.swap_only_lift_cpu(only_lift_cpu)
        dispatcher.swap_fake_mode(slot)
        torch_function.update_override()


@contextlib.contextmanager
def prefer_proxies() -> Iterator[None]:
    """Context: a torch function called with a proxy and a fake is handled by the proxy."""
    own = vars(modes.thread)
    before = own.get("torch_function")
    own["torch_function"] = subclass.disabled_torch_function
    try:
        yield
    finally:
        own.pop("torch_function", None)
        if before is not None:
            own["torch_function"] = before
