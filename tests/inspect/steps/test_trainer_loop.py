"""Steps of transformers' Trainer from its arguments: byte for byte what real ones hold."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import TrainingArguments

from tests.inspect.counted_trainer import arguments, counted_peaks, without_traces
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
NUMBERS_KEPT = (
    8  # bytes of what later steps find: the loss and the gradient norm of the previous one
)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    """Makes arguments of training."""
    with without_traces():
        yield partial(arguments, tmp_path)


def of_batch(size: int) -> tuple[nn.Module, dict[str, Any]]:
    model, inputs = model_and_inputs("gpt2")
    return model, {name: tensor[:1].repeat(size, 1) for name, tensor in inputs.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_byte_exact(name: str, made: Any) -> None:
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
        "eval_strategy=epoch: evaluation is not part of the step",
        "use_cpu=True: the step runs on cuda:0, as requested",
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
    with pytest.raises(InputsError, match=r"deepspeed='zero3\.json', for several devices"):
        estimate(model, inputs, training=sharded)
    del inputs["labels"]
    with pytest.raises(InputsError, match="the model returned no loss"):
        estimate(model, inputs, training=made())
    with pytest.raises(InputsError, match="passes inputs by name"):
        estimate(nn.Linear(3, 3), torch.ones(2, 3), training=made())
