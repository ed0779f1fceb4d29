"""What an estimate was counted with: the kind of step, the optimizer, the sizes of the inputs.

Input: a workload and a step. Output: a :class:`Counted`, plain data. Invariant: a size that the
inputs do not have is None.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from torchfake.errors import InputsError
from torchfake.inspect.contents.described import described_format
from torchfake.inspect.contents.positions import positions_of
from torchfake.inspect.copies.workload import Workload, bytes_by_dtype, taken_beside_text
from torchfake.inspect.inputs.libraries.of_libraries import denoises
from torchfake.inspect.inputs.resizing import BATCH, SEQ, longest_text, size_of
from torchfake.inspect.records.units import count_text, main_dtype, short_name
from torchfake.inspect.steps.step import Step


class Counted(NamedTuple):
    """What a step does, and with which sizes."""

    mode: str  # "training", "forward", "inference", "generation" or "serving"
    optimizer: str | None  # of a training step
    dtype: str | None  # of the parameters, and of autocast, as text; None: there are no parameters
    batch: int | None  # samples of a forward pass on this device
    micro_batches: int  # forward passes on this device before the optimizer runs
    seq: int | None  # tokens of a sequence
    is_program: bool  # a step of the user's own: torchfake adds no optimizer
    max_positions: int | None  # of the model's config, if the sequences are longer
    positions: int  # the tokens of the longest sequence
    positions_key: str  # the entry of the config that gives `max_positions`
    trained: str = ""  # which parameters a training step trains, as text; "": all
    is_autocast_idle: bool = False  # whether the parameters have the dtype of autocast already
    denoises: bool = False  # whether a pipeline of diffusers runs the module once in each step
    other_format: str = ""  # of quantized weights, in the model's config: what was not counted
    not_given: str = ""  # what the model takes beside text, and has not been given
    trains_in_fp16: bool = False  # whether what an optimizer updates is in float16

    @property
    def does(self) -> str:
        """What the step does: ``training with adamw``, ``inference``."""
        if self.mode != "training" or self.is_program:
            return f"{self.mode}{' of one denoising step' * self.denoises}"
        how = "without an optimizer" if self.optimizer is None else f"with {self.optimizer}"
        return " ".join(filter(None, ("training", self.trained, how)))

    @property
    def global_batch(self) -> int | None:
        """Samples that this device processes in a training step."""
        if self.mode != "training" or self.batch is None:
            return None
        return self.batch * self.micro_batches

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before relying on the numbers, one sentence each."""
        found = []
        if self.max_positions is not None:
            found.append(
                f"{self.positions:,} tokens are more than the model's {self.positions_key}, "
                f"{self.max_positions:,}"
            )
        if self.trains_in_fp16 and not self.is_autocast_idle:
            found.append(
                "parameters, gradients and the state of the optimizer are in float16, in which "
                "small updates vanish and gradients cannot be scaled: mixed precision keeps them "
                "in float32, model.float() with autocast, on the command line --dtype fp32 "
                "--autocast fp16"
            )
        if self.is_autocast_idle:
            found.append(
                "the parameters have the dtype of autocast already: mixed precision keeps them in "
                "float32, model.float(), on the command line --dtype fp32"
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """The sizes by name, as a dict for JSON."""
        return {
            "optimizer": self.optimizer,
            "dtype": self.dtype,
            "batch": self.batch,
            "micro_batches": self.micro_batches,
            "global_batch": self.global_batch,
            "seq": self.seq,
            **({"other_format": self.other_format} if self.other_format else {}),
            **({"not_given": self.not_given} if self.not_given else {}),
            "warnings": list(self.warnings),
        }


def counted_with(workload: Workload, step: Step) -> Counted:
    """What a step is counted with."""
    is_program = workload.program is not None
    has_inputs = not is_program and step.serve is None
    batch = _size(workload, BATCH) if has_inputs else None
    seq = _size(workload, SEQ) if has_inputs and step.decode is None else None
    positions = longest_text(workload, step)
    most = positions_of(workload.module)
    micro_batches = step.accumulate
    if step.training is not None:
        micro_batches = step.training.gradient_accumulation_steps
    other = workload.other_format or described_format(workload.module)
    dtype, autocast = _dtype_text(workload, step), _autocast(step)
    if dtype is not None and autocast is not None:
        dtype = f"{dtype} with autocast to {short_name(autocast)}"
    return Counted(
        mode=step.mode,
        optimizer=step.optimizer_name,
        dtype=dtype,
        batch=batch,
        micro_batches=micro_batches,
        seq=seq,
        is_program=is_program,
        max_positions=most.number if most is not None and positions > most.number else None,
        positions=positions,
        positions_key="" if most is None else most.key,
        trained=_trained_text(workload, step),
        denoises=not is_program and denoises(workload.module),
        other_format="" if step.weights else other,
        not_given="" if is_program else _not_given(workload),
        is_autocast_idle=step.mode == "training" and _have_all(workload, autocast),
        trains_in_fp16=not is_program and _trains_in_fp16(workload, step),
    )


def _trains_in_fp16(workload: Workload, step: Step) -> bool:
    """Whether an optimizer updates parameters in float16."""
    if step.mode != "training" or step.optimizer_name is None or step.peft is not None:
        return False
    trained = [p for p in workload.module.parameters() if p.requires_grad]
    return bool(trained) and all(p.dtype == torch.float16 for p in trained)


def _not_given(workload: Workload) -> str:
    """What a model of text and images or audio takes, where its inputs are text alone."""
    given = [name for name, each in workload.kwargs.items() if each is not None]
    if workload.args or any(name.startswith(("pixel_", "input_feat")) for name in given):
        return ""
    return workload.beside_text or taken_beside_text(workload.module)


def _trained_text(workload: Workload, step: Step) -> str:
    """What a step trains, if that is not the whole module."""
    if step.mode != "training" or workload.program is not None:
        return ""
    if step.peft is not None:
        kind = type(step.peft).__name__.removesuffix("Config")
        return f"{'LoRA' if kind == 'Lora' else kind} adapters"
    parameters = [*workload.module.parameters()]
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    some = any(not p.requires_grad for p in parameters)
    return f"{count_text(trained)} params" if some and trained else ""


def _have_all(workload: Workload, dtype: torch.dtype | None) -> bool:
    """Whether all floating-point parameters have a dtype."""
    dtypes = {p.dtype for p in workload.module.parameters() if p.is_floating_point()}
    return dtypes == {dtype}


def _dtype_text(workload: Workload, step: Step) -> str | None:
    """The dtype of the parameters, of quantized ones the scheme."""
    num_bytes = workload.dtypes or bytes_by_dtype(workload.module)
    if not num_bytes:
        return None
    return main_dtype(num_bytes) + f" with {step.weights} weights" * (step.weights is not None)


def _autocast(step: Step) -> torch.dtype | None:
    """The dtype of autocast, which TrainingArguments may give."""
    if step.training is not None and (step.training.bf16 or step.training.fp16):
        return torch.bfloat16 if step.training.bf16 else torch.float16
    return step.autocast


def _size(workload: Workload, name: str) -> int | None:
    try:
        return size_of(replace(workload, device=None), name)
    except InputsError:
        return None
