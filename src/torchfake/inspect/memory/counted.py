"""What an estimate was counted with: the kind of step, the optimizer, the sizes of the inputs.

Input: a workload and a step. Output: a :class:`Counted`, plain data. Invariant: a size that the
inputs do not have is None.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from torchfake.errors import InputsError
from torchfake.inspect.contents.positions import positions_of
from torchfake.inspect.copies.workload import Workload, bytes_by_dtype
from torchfake.inspect.inputs.resizing import BATCH, SEQ, longest_text, size_of
from torchfake.inspect.records.units import main_dtype, short_name
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

    @property
    def does(self) -> str:
        """What the step does: ``training with adamw``, ``inference``."""
        if self.mode != "training" or self.is_program:
            return self.mode
        with_optimizer = "without an optimizer" if self.optimizer is None else self.optimizer
        return f"training {'with ' * (self.optimizer is not None)}{with_optimizer}"

    @property
    def global_batch(self) -> int | None:
        """Samples that this device processes in a training step."""
        if self.mode != "training" or self.batch is None:
            return None
        return self.batch * self.micro_batches

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before relying on the numbers, one sentence each."""
        if self.max_positions is None:
            return ()
        return (
            f"{self.positions:,} tokens are more than the model's {self.positions_key}, "
            f"{self.max_positions:,}",
        )

    def to_dict(self) -> dict[str, Any]:
        """The sizes by name, as a dict for JSON."""
        return {
            "optimizer": self.optimizer,
            "dtype": self.dtype,
            "batch": self.batch,
            "micro_batches": self.micro_batches,
            "global_batch": self.global_batch,
            "seq": self.seq,
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
    return Counted(
        mode=step.mode,
        optimizer=step.optimizer_name,
        dtype=_dtype_text(workload, step),
        batch=batch,
        micro_batches=micro_batches,
        seq=seq,
        is_program=is_program,
        max_positions=most.number if most is not None and positions > most.number else None,
        positions=positions,
        positions_key="" if most is None else most.key,
    )


def _dtype_text(workload: Workload, step: Step) -> str | None:
    """The dtype of the parameters, of quantized ones the scheme, and that of autocast, as text."""
    num_bytes = workload.dtypes or bytes_by_dtype(workload.module)
    if not num_bytes:
        return None
    text = main_dtype(num_bytes)
    text += "" if step.weights is None else f" with {step.weights} weights"
    autocast = step.autocast
    if step.training is not None and (step.training.bf16 or step.training.fp16):
        autocast = torch.bfloat16 if step.training.bf16 else torch.float16
    return text if autocast is None else f"{text} with autocast to {short_name(autocast)}"


def _size(workload: Workload, name: str) -> int | None:
    try:
        return size_of(replace(workload, device=None), name)
    except InputsError:
        return None
