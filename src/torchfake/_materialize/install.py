"""The exchange of one deferred fake with its real tensor, after which the fake's object is real.

Input: a fake whose storage is real. Output: the same object, with the class, gradient, hooks and
attributes that it had. Invariant: every reference to the fake refers to the real tensor afterwards.
"""

from __future__ import annotations

import contextlib

import torch

from torchfake._graph.deferred_storage import DeferredState
from torchfake._materialize import counterparts
from torchfake._tensor.fake_tensor import FakeTensor, user_attributes
from torchfake._torch import autograd, subclass


def install(fake: FakeTensor, recorded: DeferredState, grad: torch.Tensor | None) -> None:
    """Make `fake` the real tensor that it stands for, on the real storage of `recorded`. The caller
    is in :func:`~torchfake._torch.dispatcher.as_eager`.
    """
    assert recorded.real is not None
    requires_grad = fake.requires_grad
    with autograd.inference_mode(True) if fake.is_inference() else contextlib.nullcontext():
        real = _of_class(counterparts.real_tensor(fake), fake)
        if requires_grad != real.requires_grad:
            real.requires_grad_(requires_grad)
        if grad is not None and not isinstance(grad, FakeTensor):
            _set_gradient(real, grad)
    real.__dict__.update(user_attributes(fake))
    subclass.move_hooks(fake, real)
    subclass.swap_tensors(fake, real)
    counterparts.remember(real, fake)  # exchanged: `fake` is the real tensor


def _set_gradient(real: torch.Tensor, grad: torch.Tensor) -> None:
    """Set ``real.grad``, also if in-place changes of the tensor gave it another shape since."""
    data = real.data
    subclass.set_data(real, grad.detach())
    real.grad = grad
    subclass.set_data(real, data)


def _of_class(tensor: torch.Tensor, fake: FakeTensor) -> torch.Tensor:
    """`tensor` with the class of `fake` in eager mode: the same object, on which views may depend,
    unless the class takes part in dispatch.
    """
    wanted = getattr(type(fake), "_fake_of", torch.Tensor)
    if wanted.__torch_dispatch__ is not subclass.disabled_torch_dispatch:
        return subclass.make_subclass(wanted, tensor)
    tensor.__class__ = wanted
    return tensor
