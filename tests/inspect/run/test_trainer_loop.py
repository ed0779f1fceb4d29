"""Steps of transformers' Trainer from its arguments: byte for byte what real ones hold.

On the CPU one batch more is there than on a GPU: the one that the loader has fetched ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.inspect.memory_oracle import StorageCounter
from tests.inspect.small_models import model_and_inputs
from torchfake import estimate, fit
from torchfake.errors import InputsError

pytestmark = pytest.mark.filterwarnings("ignore")

CASES: dict[str, dict[str, Any]] = {
    "accumulation": {"gradient_accumulation_steps": 3, "optim": "sgd"},
    "autocast": {"bf16": True, "gradient_accumulation_steps": 2},
    "checkpointing": {"gradient_checkpointing": True, "optim": "adafactor", "max_grad_norm": 0.0},
    "reentrant": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
        "bf16": True,
        "optim": "sgd",
    },
    "label smoothing": {"label_smoothing_factor": 0.1, "bf16": True, "optim": "sgd"},
    "noisy embeddings": {"neftune_noise_alpha": 5.0, "optim": "sgd", "use_cache": True},
}
NUMBERS_KEPT = 8  # bytes of what later steps find: the loss and the gradient norm of the one before


class Steps(TrainerCallback):
    """Notes the peak of each step."""

    def __init__(self, counter: StorageCounter) -> None:
        self.counter, self.peaks = counter, list[int]()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.counter.peak_bytes = self.counter.num_bytes

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.peaks.append(self.counter.peak_bytes)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    """Makes arguments of training; what a Trainer leaves behind is removed."""
    state = torch.get_rng_state()

    def make(**options: Any) -> TrainingArguments:
        return TrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            report_to=[],
            max_steps=3,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            **{"per_device_train_batch_size": 2, **options},
        )

    yield make
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


def of_batch(size: int) -> tuple[nn.Module, dict[str, Any]]:
    model, inputs = model_and_inputs("gpt2")
    return model, {name: tensor[:1].repeat(size, 1) for name, tensor in inputs.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_byte_exact(name: str, made: Any, capsys: Any) -> None:
    model, inputs = of_batch(2)
    args = made(**CASES[name])
    found = estimate(model, inputs, training=args)
    ahead = sum(tensor.nbytes for tensor in inputs.values())
    first, *later = counted_peaks(model, args, inputs)
    assert later == [found.peak_bytes + ahead] * 2
    assert 0 <= found.first_step_peak_bytes + ahead - first <= NUMBERS_KEPT
    assert found.left_out == ()


def test_the_batch_is_that_of_the_arguments(made: Any) -> None:
    model, inputs = of_batch(1)
    args = made(per_device_train_batch_size=4)
    found = estimate(model, inputs, training=args)
    assert found.peak_bytes == estimate(*of_batch(4), training=args).peak_bytes
    on_gpu = estimate(model, inputs, training=args, gpu="t4-16gb")
    (fits,) = fit(on_gpu, "t4-16gb", vary=None)
    assert fits.peak_bytes == on_gpu.peak_bytes


def test_half_precision_scales_the_loss(made: Any) -> None:
    model, inputs = of_batch(2)
    args = made(fp16=True)
    found = estimate(model, inputs, training=args, gpu="a100-40gb")
    cast = estimate(model, inputs, training=made(bf16=True), gpu="a100-40gb")
    assert 0 < found.peak_bytes - cast.peak_bytes < 10_000
    with pytest.raises(InputsError, match="fp16=True: a Trainer asks for a GPU"):
        estimate(model, inputs, training=args)


def test_settings_that_are_not_followed_are_named(made: Any) -> None:
    class OwnArguments(TrainingArguments):
        pass

    model, inputs = of_batch(2)
    args = made(
        torch_empty_cache_steps=2,
        auto_find_batch_size=True,
        eval_strategy="epoch",
        optim="sgd",
    )
    args.__class__ = OwnArguments
    args.torch_compile = True
    found = estimate(model, inputs, training=args, gpu="t4-16gb")
    assert found.left_out == (
        "OwnArguments: the step is that of transformers' Trainer; what OwnArguments adds is not followed",
        "torch_compile=True: the step is run as eager",
        "torch_empty_cache_steps=2: the allocator keeps its cache",
        "auto_find_batch_size=True: the batch is per_device_train_batch_size",
        "eval_strategy=epoch: evaluation is another step",
        "use_cpu=True: the step is on cuda:0, as was asked for",
    )
    assert "left out" in repr(found)
    assert found.to_dict()["left_out"] == list(found.left_out)


def test_what_cannot_be(made: Any) -> None:
    model, inputs = of_batch(2)
    with pytest.raises(InputsError, match="training= is a dict: give transformers"):
        estimate(model, inputs, training={})
    with pytest.raises(InputsError, match="optimizer= and training="):
        estimate(model, inputs, training=made(), optimizer="sgd")
    with pytest.raises(InputsError, match="optim=galore_adamw cannot be made of these parameters"):
        estimate(model, inputs, training=made(optim="galore_adamw"))
    sharded = made()
    sharded.deepspeed = "zero3.json"
    with pytest.raises(InputsError, match="deepspeed='zero3.json', for several devices"):
        estimate(model, inputs, training=sharded)
    del inputs["labels"]
    with pytest.raises(InputsError, match="the model gave no loss"):
        estimate(model, inputs, training=made())
    with pytest.raises(InputsError, match="passes inputs by name"):
        estimate(nn.Linear(3, 3), torch.ones(2, 3), training=made())
