"""One deferred fake exchanged with a real tensor: the same object, from then on real.

Input: a fake whose storage is real by now. Output: the same object, with the class, gradient, hooks
and attributes that it had. Invariant: every reference to it is real with it. Called by:
``materialize``, as soon as a storage has been replayed.
"""

from __future__ import annotations

import torch

from torchfake._core import memory
from torchfake._graph.deferred_storage import DeferredState
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatcher, subclass

_OF_FAKES = ("_fake_meta", "_fake_storage", "_is_param")


def install(fake: FakeTensor, recorded: DeferredState, grad: torch.Tensor | None) -> None:
    """Make `fake` the real tensor that it stands for, on the real storage of `recorded`."""
    assert recorded.real is not None
    is_inference = recorded.is_inference or fake.is_inference()
    with dispatcher.as_eager(), torch.inference_mode(is_inference):
        real = _of_class(memory.view_of(recorded.real, fake._fake_meta), fake)
        real.requires_grad_(fake.requires_grad)
        if grad is not None and not isinstance(grad, FakeTensor):
            real.grad = grad
    own = fake.__dict__
    real.__dict__.update({key: own[key] for key in own if key not in _OF_FAKES})
    subclass.move_hooks(fake, real)
    subclass.swap_tensors(fake, real)


def _of_class(view: torch.Tensor, fake: FakeTensor) -> torch.Tensor:
    """`view` with the class that a real one would have."""
    wanted = getattr(type(fake), "_fake_of", None)
    if wanted is None:
        return torch.nn.Parameter(view, False) if fake.__dict__.get("_is_param") else view
    return subclass.make_subclass(wanted, view)
