"""The oracle of Trainers: a real one on the CPU, the peak of each step counted.

On the CPU one batch more is there than on a GPU: the one that the loader has fetched ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.inspect.memory.memory_oracle import StorageCounter


class Steps(TrainerCallback):
    """Notes the peak of each step."""

    def __init__(self, counter: StorageCounter) -> None:
        self.counter, self.peaks = counter, list[int]()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.counter.peak_bytes = self.counter.num_bytes

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.peaks.append(self.counter.peak_bytes)


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    """Of a training of a few steps on the CPU that writes nothing."""
    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        max_steps=3,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        **{"per_device_train_batch_size": 2, **options},
    )


@contextmanager
def without_traces() -> Iterator[None]:
    """What a Trainer leaves behind is removed."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def counted_peaks(model: nn.Module, args: TrainingArguments, inputs: dict[str, Any]) -> list[int]:
    """Of the steps of a real Trainer, all of whose batches are copies of one."""
    row = {name: tensor[0] for name, tensor in inputs.items()}
    batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=[row] * (batch_size * (args.max_steps + 1)),
        data_collator=lambda _: {name: tensor.clone() for name, tensor in inputs.items()},
    )
    counter = StorageCounter([*model.parameters(), *model.buffers()])
    steps = Steps(counter)
    trainer.add_callback(steps)
    with counter:
        trainer.train()
    return steps.peaks
