"""Example inputs: a model of transformers, and keyword arguments that it runs on.

Enters: a model and sizes. Leaves: fakes by the names of its ``forward``. Invariant: the model is
neither run nor changed, and no weight is read.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._transformers import is_its_model
from torchfake.errors import InputsError
from torchfake.fake import fake_mode
from torchfake.inspect.build import device_named, num_cuda
from torchfake.inspect.hf_inputs import made
from torchfake.inspect.hf_labels import labels_for
from torchfake.inspect.hf_sizes import Sizes


class ExampleInputs(dict[str, Any]):
    """Keyword arguments of a model's ``forward``, and the sizes they were made for.

    Attributes:
        batch: how many examples.
        seq: tokens of each text, or frames of each sound; None if the model takes neither.
    """

    batch: int
    seq: int | None

    def __init__(self, sizes: Sizes, *, labels: bool, device: torch.device) -> None:
        with fake_mode(fake_cuda=num_cuda(device)), device:
            super().__init__(made(sizes))
            if labels:
                self.update(labels_for(sizes, self))
        self.batch, self.seq = sizes.batch, sizes.seq if sizes.has_seq else None
        self._model, self._labels, self._device = sizes.model, labels, device

    def resized(self, *, batch: int | None = None, seq: int | None = None) -> ExampleInputs:
        """The same for another batch or length; what is not given stays as it is.

        Raises:
            InputsError: as :func:`example_inputs` does.
        """
        return example_inputs(
            self._model,
            batch=self.batch if batch is None else batch,
            seq=self.seq if seq is None else seq,
            labels=self._labels,
            device=self._device,
        )


def example_inputs(
    model: torch.nn.Module,
    *,
    batch: int = 1,
    seq: int | None = None,
    labels: bool = False,
    device: torch.device | str | None = None,
) -> ExampleInputs:
    """Inputs that a model of transformers runs on, as fakes.

    Texts, images and sounds have the sizes that the config names. A model of texts and images
    gets both if it compares or joins them always, and a text alone if images stand for tokens of
    it. What models branch on (tokens, masks, grids) has values as long as a fake keeps them, 1 MiB;
    of a larger mask all rows are one in memory, and one of more than a million tokens is left out,
    as models need none.

    Args:
        model: any ``PreTrainedModel``: fake, deferred or real. It is not run.
        batch: examples.
        seq: tokens of each text, on both sides of an encoder-decoder; frames of each sound, as the
            first layers make them. As many as the model has positions for, at most 128, if not
            given. More than it has positions for are taken: running it tells.
        labels: whether to give what makes the output have a ``loss``.
        device: where the inputs are; where the model's first parameter is, if not given.

    Returns:
        A dict of what ``model(**inputs)`` needs, with the sizes as attributes and a method that
        makes the same for others.

    Raises:
        InputsError: if `model` is not of transformers, needs an argument that cannot be made up, or
            has no loss to make labels for; or if a size is not a whole number of 1 or more.
        DeviceError: if fakes cannot be on `device`.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> with fake_mode():
    ...     model = GPT2LMHeadModel(GPT2Config())
    >>> inputs = example_inputs(model, batch=2, labels=True)
    >>> {name: list(value.shape) for name, value in inputs.items()}
    {'input_ids': [2, 128], 'attention_mask': [2, 128], 'labels': [2, 128]}
    >>> model(**inputs.resized(batch=64, seq=1024)).logits.shape
    torch.Size([64, 1024, 50257])
    """
    _check_size("batch", batch)
    if seq is not None:
        _check_size("seq", seq)
    if not isinstance(model, torch.nn.Module) or not is_its_model(model):
        raise InputsError(
            f"inputs can be made up for models of transformers, not for a {type(model).__name__}: "
            "make them yourself; inside fake_mode() they cost nothing"
        )
    on = _device_of(model) if device is None else device
    sizes = Sizes(model, batch=batch, seq=seq)
    return ExampleInputs(sizes, labels=labels, device=device_named(str(on)))


def _device_of(model: torch.nn.Module) -> torch.device:
    """Where its first parameter is; on the CPU, if that is on meta."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return torch.device("cpu") if device.type == "meta" else device


def _check_size(name: str, size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputsError(f"{name} must be a whole number of 1 or more, not {size!r}")
