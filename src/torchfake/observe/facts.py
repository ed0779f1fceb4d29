"""Facts of fakes, and the mode in which a program copied onto fakes runs.

Input: tensors. Output: metadata, storages and known values of fakes; None for other tensors.
Invariant: queries change nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from torchfake._core.gpu_profiles import AlikeGpus
from torchfake._core.metadata import Metadata
from torchfake._core.modes import FakeAccelerator
from torchfake._core.storage import Storage
from torchfake._patches.entry import Entered
from torchfake._tensor import known_values
from torchfake._tensor.copies import held_tensors
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd, backends, dispatcher, subclass
from torchfake._torch.compiler import tracer_modes
from torchfake._torch.contexts import Together
from torchfake._torch.distributed.dtensors import is_dtensor
from torchfake._unknown_values import answerers
from torchfake._unknown_values.answerers import Answerer
from torchfake.fake import fake_mode


def metadata_of(fake: FakeTensor) -> Metadata:
    """The size, stride, offset, dtype and device of a fake, as a hashable record. Fakes with equal
    metadata mostly share one record.
    """
    return fake._fake_meta


def storage_of(tensor: object) -> Storage | None:
    """The storage of a fake: it has `num_bytes`, `device`, `op` (the operator that created it) and
    `source_location`. Two fakes share memory if and only if their storages are one object.

    A reference to the storage keeps it alive, so observers are not notified of its end.
    """
    return tensor._fake_storage if isinstance(tensor, FakeTensor) else None


def known_value(tensor: object, asked_by: str = "") -> torch.Tensor | None:
    """The value of a fake, as a real tensor to be read; None if the value is not known.

    Args:
        tensor: any object.
        asked_by: the name of the reader. If given, values assumed to be finite count as known, and
            the assumption is listed with the answers of the mode.
    """
    storage = storage_of(tensor)
    if storage is None or storage.deferred is not None:
        return None
    is_known = not known_values.is_unknown(tensor) if asked_by else known_values.is_known(tensor)
    return known_values.read_value(tensor, asked_by) if is_known else None


def set_known_value(fake: FakeTensor, value: torch.Tensor) -> None:
    """Set the value of a fake that covers its whole storage, if the value is small enough."""
    storage = fake._fake_storage
    if storage.num_bytes == value.nbytes:
        known_values.store_tensor_value(storage, value)


def assume_value(fake: FakeTensor, value: torch.Tensor, asked_by: str, assumption: str) -> None:
    """Assume the value of a fake, and list the assumption with the answers of the mode.

    Args:
        fake: a fake that covers its whole storage.
        value: a real tensor of its shape.
        asked_by: the operator whose result the value is.
        assumption: the reason for the assumption, listed in place of the name of an answerer.
    """
    answerers.note(fake, asked_by, value.flatten()[0].item(), assumption)
    with dispatcher.no_interception(), dispatcher.in_fake_slot(None):
        made = value.to(fake.dtype).clone(memory_format=torch.contiguous_format)
    fake._fake_storage.value = made.untyped_storage()


def held_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor; for a wrapper, such as a quantized tensor, the bytes of its inner
    tensors, counting shared storages once. A DTensor counts with its full size, over all ranks.
    """
    held = [tensor] if is_dtensor(tensor) else held_tensors(tensor)
    if len(held) == 1 and held[0] is tensor:
        return tensor.numel() * tensor.dtype.itemsize
    storages = [each.untyped_storage() for each in held]
    return sum({subclass.storage_key(s): s.nbytes() for s in storages}.values())


def no_mode() -> AbstractContextManager[None]:
    """Context inside a mode in which new tensors are real; operators run on real tensors only."""
    return known_values.without_fake_mode()


def mode_of_copies(answerer: Answerer, gpu: AlikeGpus | None = None, num_gpus: int = 0) -> Together:
    """Context: a fake mode for a program that was copied onto fakes. Autograd is on and autocast
    off, whatever the caller has set; modes of torch that an interrupt leaves on are removed.

    Args:
        answerer: answers questions about unknown values.
        gpu: the type of the CUDA devices; types that are alike no longer are removed from it.
        num_gpus: the number of CUDA devices.
    """
    machine = FakeAccelerator("cuda", num_gpus, gpu) if num_gpus else False
    mode = fake_mode(fake_cuda=machine)
    mode._answerer = answerer
    return Together(
        tracer_modes.torch_modes_kept(),
        Entered(mode),
        autograd.inference_mode(False),  # also enables the recording of autograd
        *map(backends.autocast_off, ("cpu", "cuda")),
    )
