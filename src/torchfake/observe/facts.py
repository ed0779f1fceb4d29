"""Facts of fakes, and the mode in which a copied program runs.

Input: tensors. Output: metadata, storages and known values of fakes; None of other tensors.
Invariant: asking changes nothing.
"""

from __future__ import annotations

import torch

from torchfake._contexts import Together
from torchfake._core.gpu_profiles import CudaProfile
from torchfake._core.metadata import Metadata
from torchfake._core.modes import FakeAccelerator
from torchfake._core.storage import Storage
from torchfake._patches.entry import Entered
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd, backends, dispatcher
from torchfake._unknown_values.answerers import Answerer, answering_by
from torchfake.fake import fake_mode


def metadata_of(tensor: object) -> Metadata | None:
    """Shape, strides, dtype and device of a fake. Equal metadata is mostly one object, which is its
    own key in a dict.
    """
    return tensor._fake_meta if isinstance(tensor, FakeTensor) else None


def storage_of(tensor: object) -> Storage | None:
    """The storage of a fake: it has `num_bytes`, `device`, `op` (the operator that made it) and
    `source_location`. Two fakes share memory if and only if their storages are one object.

    Who keeps the storage keeps its memory alive, as far as observers are told.
    """
    return tensor._fake_storage if isinstance(tensor, FakeTensor) else None


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value of a fake, as a real tensor to be read; None if the value is not known."""
    if not isinstance(tensor, FakeTensor) or not tensor._fake_storage.is_known:
        return None
    return known_values.read_value(tensor, "an observer")


def mode_of_copies(
    answerer: Answerer, gpu: CudaProfile | None = None, num_gpus: int = 0
) -> Together:
    """Context: a fake mode for a program that was copied onto fakes. Autograd is on and autocast
    off, whatever the caller has set; modes of torch that an interrupt leaves on are taken off.

    Args:
        answerer: of questions about values that do not exist.
        gpu: the GPU that CUDA devices are.
        num_gpus: how many of them there are.
    """
    machine = FakeAccelerator("cuda", num_gpus, gpu) if num_gpus else False
    return Together(
        dispatcher.torch_modes_kept(),
        Entered(fake_mode(fake_cuda=machine)),
        answering_by(answerer),
        autograd.inference_mode(False),
        autograd.enable_grad(),
        *map(backends.autocast_off, ("cpu", "cuda")),
    )
