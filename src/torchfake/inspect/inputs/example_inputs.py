"""Example inputs: keyword arguments that a model of a known library runs on.

Input: a model and sizes. Output: fakes by the names of the arguments of its ``forward``. Invariant:
the model is neither run nor changed, and no weight is read.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core.arguments import check_flag, is_whole_number
from torchfake._core.pickle_names import publish
from torchfake._files.transformers_checkpoints import is_transformers_model
from torchfake.errors import InputsError
from torchfake.fake import fake_mode
from torchfake.inspect.copies.workload import kind_of
from torchfake.inspect.inputs.forward_arguments import make_arguments
from torchfake.inspect.inputs.hints import example_call
from torchfake.inspect.inputs.labels import labels_for
from torchfake.inspect.inputs.libraries.of_libraries import arguments_of, library_of
from torchfake.inspect.inputs.libraries.torchvision_models import detection_targets, is_detector
from torchfake.inspect.inputs.sizes import Sizes
from torchfake.inspect.records.tensor_specs import dtype_name
from torchfake.inspect.targets.options import device_named, num_cuda_devices


class ExampleInputs(dict[str, Any]):
    """Keyword arguments of a model's ``forward``, and the sizes they were made for.

    Attributes:
        batch: the batch size.
        seq: the sequence length, in tokens of a text or frames of a sound; None if the model takes
            neither.
    """

    batch: int
    seq: int | None

    def __init__(
        self,
        model: torch.nn.Module,
        base: torch.nn.Module,
        *,
        batch: int,
        seq: int | None,
        labels: bool,
        device: torch.device,
    ) -> None:
        with fake_mode(fake_cuda=num_cuda_devices(device)), device:
            library = library_of(base)
            if library is None:
                self.seq = self._of_transformers(model, Sizes(base, batch=batch, seq=seq), labels)
            else:
                made, self.seq = arguments_of(base, library, batch, seq)
                super().__init__(made)
                if labels and is_detector(base):
                    self.update(detection_targets(base, batch))
        self.batch = batch
        self._model, self._labels, self._device = model, labels, device

    def _of_transformers(self, model: torch.nn.Module, sizes: Sizes, labels: bool) -> int | None:
        super().__init__(make_arguments(sizes))
        if labels:
            self.update(labels_for(sizes, self))
        if _asks_for_tasks(model):
            self["task_ids"] = torch.zeros(sizes.batch, dtype=torch.int64)
        return sizes.seq if sizes.uses_seq else None

    def resized(self, *, batch: int | None = None, seq: int | None = None) -> ExampleInputs:
        """The inputs for another batch size or sequence length; sizes that are None are kept.

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


publish(ExampleInputs, "torchfake.inspect.inputs")


def example_inputs(
    model: torch.nn.Module,
    *,
    batch: int = 1,
    seq: int | None = None,
    labels: bool = False,
    device: torch.device | str | None = None,
) -> ExampleInputs:
    """Generate fake inputs for a model of transformers, timm, torchvision or diffusers.

    Text, images and audio have the sizes that the config specifies. A model of text and images gets
    both if it always needs both, and only text if images are optional and marked by placeholder
    tokens. Tensors that models branch on (token ids, masks, grids) have known values up to the
    1 MiB for which fakes keep them. The rows of a larger mask share memory, and a mask of more than
    a million tokens is omitted, since models do not need it.

    Models of timm get pictures of the size in their ``default_cfg``; those of torchvision what the
    transforms of their weights make (detectors: pictures of 480 x 640, and for training eight boxes
    on each); those of diffusers the latents, times and embedded texts that their pipeline prepares,
    in its default resolution where the config has none.

    Args:
        model: any ``PreTrainedModel``, or a model of timm, torchvision or diffusers: fake, deferred
            or real; or one wrapped by PEFT, DistributedDataParallel or ``torch.compile``. It is not
            run.
        batch: the batch size.
        seq: the sequence length: the number of tokens of each text, for encoder and decoder alike,
            or of audio frames after the first layers. By default the number of positions of the
            model, at most 128; in diffusers, the length to which the pipeline pads its texts.
            Longer sequences are accepted here, but fail when they are run.
        labels: add the arguments for which the output has a ``loss``.
        device: the device of the inputs, by default that of the model's first parameter.

    Returns:
        A dict of the arguments for ``model(**inputs)``. It has the sizes as attributes, and a
        method ``resized`` that generates the same inputs for other sizes.

    Raises:
        InputsError: if `model` is of none of these libraries, needs an unknown argument, or has no
            loss to create labels for; or if a size is not an integer of at least 1.
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
    check_flag(labels, "labels")
    if seq is not None:
        _check_size("seq", seq)
    if not isinstance(model, torch.nn.Module):
        raise InputsError(f"inputs are generated for a model, not for {kind_of(model)}")
    base = base_model(model)
    if base is None:
        raise InputsError(
            "inputs can be generated for models of transformers, timm, torchvision and diffusers, "
            f"not for a {type(model).__name__}: make them yourself, such as "
            f"{example_call(model)}; inside fake_mode() they cost nothing"
        )
    on = device_named(str(device_of(model) if device is None else device))
    return ExampleInputs(model, base, batch=batch, seq=seq, labels=labels, device=on)


def sized_inputs(
    model: torch.nn.Module, *, batch: int, seq: int | None, labels: bool
) -> ExampleInputs:
    """The inputs of :func:`example_inputs` for sizes that a user names.

    Raises:
        InputsError: as `example_inputs` does, and if a length is named that no input has.
    """
    made = example_inputs(model, batch=batch, seq=seq, labels=labels)
    if seq is not None and made.seq is None:
        raise InputsError(
            f"{type(base_model(model)).__name__} takes no sequence, so no input has seq={seq}: "
            "leave it out; the sizes of its inputs are those of its config"
        )
    return made


def has_inputs(model: torch.nn.Module) -> bool:
    """Whether inputs can be generated for a model."""
    return base_model(model) is not None


def base_model(model: Any) -> torch.nn.Module | None:
    """The model that `model` is or wraps for which inputs can be generated; None if there is none:
    a model of transformers, timm, torchvision or diffusers.
    """
    while isinstance(model, torch.nn.Module):
        if is_transformers_model(model) or library_of(model) is not None:
            return model
        get_base = getattr(model, "get_base_model", None)  # a method of PEFT's models
        inner = get_base() if callable(get_base) else None
        model = inner or getattr(model, "module", None) or getattr(model, "_orig_mod", None)
    return None


def _asks_for_tasks(model: Any) -> bool:
    """Whether an adapter of PEFT needs the argument ``task_ids``: the task of each row."""
    configs = getattr(model, "peft_config", None)
    kinds = {str(c.peft_type.value) for c in configs.values()} if isinstance(configs, dict) else ()
    return not {"POLY", "MULTITASK_PROMPT_TUNING"}.isdisjoint(kinds)


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of a model's first parameter; the CPU, if that is on meta."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return torch.device("cpu") if device.type == "meta" else device


def _check_size(name: str, size: int) -> None:
    if not is_whole_number(size, 1):
        raise InputsError(f"{name} must be a whole number of 1 or more, not {size!r}")


def generated_inputs(inputs: Any) -> tuple[str, ...]:
    """The sizes of generated inputs, if there are pictures, latents or sounds among them: nobody
    has named these.
    """
    if not isinstance(inputs, ExampleInputs):
        return ()
    tensors = {name: each for name, each in inputs.items() if isinstance(each, torch.Tensor)}
    if not any(t.is_floating_point() and t.dim() > 1 for t in tensors.values()):
        return ()
    return tuple(f"{name} {dtype_name(t.dtype)}{[*t.shape]}" for name, t in tensors.items())


def generated_to_dict(inputs: Any) -> dict[str, list[str]]:
    """The sizes of generated inputs as a dict for JSON; empty if they are not said."""
    found = generated_inputs(inputs)
    return {"generated_inputs": [*found]} if found else {}
