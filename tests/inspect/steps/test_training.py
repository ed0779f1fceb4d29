"""The plain training loop: accumulation and kept gradients, as arguments and written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.inspect.memory.memory_oracle import StorageCounter
from tests.inspect.small_models import model_and_inputs
from torchfake import estimate, fit
from torchfake.errors import InputsError
from torchfake.inspect import Question, inspect_target

LOOPS = [
    (accumulate, keeps, cast)
    for accumulate in (1, 3)
    for keeps in (False, True)
    for cast in (False, True)
]


@pytest.mark.parametrize(("accumulate", "keeps", "cast"), LOOPS)
def test_arguments_are_the_loop_written_out(accumulate: int, keeps: bool, cast: bool) -> None:
    model, inputs = model_and_inputs("gpt2")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad(set_to_none=not keeps)
        for _ in range(accumulate):
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                output = model(**inputs)
                loss = output.loss / accumulate if accumulate > 1 else output.loss
            loss.backward()
        optimizer.step()

    found = estimate(
        model,
        inputs,
        optimizer=optimizer,
        accumulate=accumulate,
        keep_gradients=keeps,
        autocast="bf16" if cast else None,
    )
    written = estimate(step)
    peaks = found.first_step_peak_bytes, found.peak_bytes
    assert peaks == (written.first_step_peak_bytes, written.peak_bytes)


def test_gradients_that_are_kept_are_there_in_the_forward_pass() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    x = torch.empty(4096, 256)
    freed = estimate(model, x, optimizer="sgd", gpu="a100-40gb")
    kept = estimate(model, x, optimizer="sgd", gpu="a100-40gb", keep_gradients=True)
    gradients = 4 * 256 * 256 * 4
    assert kept.peak.by_category["gradients"] == gradients
    assert freed.peak.phase == kept.peak.phase == "backward"
    assert kept.peak_bytes > freed.peak_bytes
    assert freed.peak_reserved_bytes <= kept.peak_reserved_bytes  # type: ignore[operator]
    assert kept.first_step_peak_bytes == freed.peak_bytes
    (fits,) = fit(kept, "a100-40gb")
    assert fits.peak_bytes == kept.peak_bytes


class Replacing(nn.Module):
    """Binds its buffer to another tensor in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.register_buffer("state", torch.zeros(512, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = self.state * 0.9
        return self.layer(x).relu() * 2


def test_a_buffer_that_is_replaced_is_freed() -> None:
    model, x = Replacing(), torch.randn(512, 32)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        output = model(x)
        loss = output.sum()
        loss.backward()
        optimizer.step()

    counter = StorageCounter([*model.parameters(), model.state, x])
    with counter:
        step()
    found, written = estimate(model, x, optimizer=optimizer), estimate(step)
    assert found.peak_bytes == written.peak_bytes == counter.peak_bytes


def test_accumulation_for_a_target() -> None:
    question = Question(batch=2, seq=8, accumulate=2, keep_gradients=True)
    small = ["n_layer=1", "n_embd=32", "n_head=2", "vocab_size=64"]
    found = inspect_target("transformers:GPT2LMHeadModel", overrides=small, question=question)
    assert found.estimate is not None
    assert (found.estimate.mode, found.estimate.step.accumulate) == ("training", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 0, "optimizer": "sgd"}, "accumulate=0 is not a whole number of 1"),
        ({"accumulate": True, "optimizer": "sgd"}, "accumulate=True is not a whole number"),
        ({"accumulate": 2}, "accumulate=2 is for training: give an optimizer="),
        ({"keep_gradients": True, "mode": "forward"}, "keep_gradients=True is for training"),
        ({"keep_gradients": 1, "optimizer": "sgd"}, "keep_gradients=1 is not True or False"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputsError, match=message):
        estimate(nn.Linear(3, 3), torch.ones(2, 3), **options)


def test_a_function_does_that_itself() -> None:
    with pytest.raises(InputsError, match="accumulate= is for a module"):
        estimate(lambda: None, accumulate=2)
