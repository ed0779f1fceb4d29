"""Facts of fakes, and the mode in which a copied program runs.

Input: tensors. Output: metadata, storages and known values of fakes; None of other tensors.
Invariant: asking changes nothing.
"""

from __future__ import annotations

import torch

from torchfake._core.gpu_profiles import CudaProfile
from torchfake._core.metadata import Metadata
from torchfake._core.modes import FakeAccelerator
from torchfake._core.storage import Storage
from torchfake._patches.entry import Entered
from torchfake._tensor import known_values
from torchfake._tensor.copies import held_tensors
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd, backends, dispatcher, subclass
from torchfake._torch.compiler import tracer_modes
from torchfake._torch.contexts import Restoring, Together
from torchfake._torch.distributed.dtensors import is_dtensor
from torchfake._unknown_values import answerers
from torchfake._unknown_values.answerers import Answerer, answering_by
from torchfake.fake import fake_mode


def metadata_of(fake: FakeTensor) -> Metadata:
    """Size, stride, offset, dtype and device of a fake. Equal metadata is mostly one object, which
    is its own key in a dict.
    """
    return fake._fake_meta


def storage_of(tensor: object) -> Storage | None:
    """The storage of a fake: it has `num_bytes`, `device`, `op` (the operator that made it) and
    `source_location`. Two fakes share memory if and only if their storages are one object.

    Who keeps the storage keeps its memory alive, as far as observers are told.
    """
    return tensor._fake_storage if isinstance(tensor, FakeTensor) else None


def known_value(tensor: object, asked_by: str = "") -> torch.Tensor | None:
    """The value of a fake, as a real tensor to be read; None if the value is not known.

    Args:
        tensor: any object.
        asked_by: who asks. If given, what is assumed (that values are finite) is known too, and
            listed with the answers of the mode.
    """
    storage = storage_of(tensor)
    if storage is None or storage.deferred is not None:
        return None
    is_known = not storage.is_unknown if asked_by else storage.is_known
    return known_values.read_value(tensor, asked_by) if is_known else None


def set_known_value(fake: FakeTensor, value: torch.Tensor) -> None:
    """Have a fake that is all of its storage know its value, if that is small enough to be kept."""
    storage = fake._fake_storage
    if storage.num_bytes == value.nbytes:
        known_values.store_tensor_value(storage, value)


def assume_value(fake: FakeTensor, value: torch.Tensor, asked_by: str, assumption: str) -> None:
    """Take a value for the one that a fake has, and list that with the answers of the mode.

    Args:
        fake: all of its storage.
        value: a real tensor of its shape.
        asked_by: the operator that the value is the result of.
        assumption: why this value is taken; it is listed as who answered.
    """
    answerers.note(fake, asked_by, value.flatten()[0].item(), assumption)
    with dispatcher.no_interception(), dispatcher.in_fake_slot(None):
        made = value.to(fake.dtype).clone(memory_format=torch.contiguous_format)
    fake._fake_storage.value = made.untyped_storage()


def held_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor; of one that holds others, such as a quantized one, those of the others,
    memory that it has under several names once. A DTensor is counted whole, with the shards of all
    ranks.
    """
    held = [tensor] if is_dtensor(tensor) else held_tensors(tensor)
    if len(held) == 1 and held[0] is tensor:
        return tensor.numel() * tensor.dtype.itemsize
    storages = [each.untyped_storage() for each in held]
    return sum({subclass.storage_key(s): s.nbytes() for s in storages}.values())


def no_mode() -> Restoring:
    """Context: in a mode, new tensors are real, and operators run on real tensors alone."""
    return known_values.without_fake_mode()


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
        tracer_modes.torch_modes_kept(),
        Entered(fake_mode(fake_cuda=machine)),
        answering_by(answerer),
        autograd.inference_mode(False),  # which has autograd record, too
        *map(backends.autocast_off, ("cpu", "cuda")),
    )
