"""Generation: the peak is that of a greedy loop over all tokens on real tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.inspect.memory.memory_oracle import StorageCounter
from tests.inspect.small_models import cache_name, model_and_inputs
from torchfake.errors import InputsError
from torchfake.inspect import estimate, fit


def test_generation_is_byte_exact() -> None:
    """Against a loop over all tokens on real tensors."""
    model, _ = model_and_inputs("llama")
    model.eval()
    name = cache_name(model)
    prompt, new = 7, 9
    counting = StorageCounter([*model.parameters(), *model.buffers()])
    with counting, torch.no_grad():
        token = torch.zeros(2, prompt, dtype=torch.long)
        cache = None
        for _ in range(new):
            output = model(input_ids=token, **{name: cache}, use_cache=True, logits_to_keep=1)
            cache = output[name]
            del output
            token = torch.zeros(2, 1, dtype=torch.long)
    found = estimate(model, torch.zeros(2, 1, dtype=torch.long), decode=(prompt, new))
    assert found.mode == "generation"
    assert found.peak_bytes == counting.peak_bytes
    assert found.peak.by_category["kv cache"] > 0


@pytest.mark.parametrize("new", [1, 2, 9])
def test_generation_with_an_encoder_is_byte_exact(new: int) -> None:
    model, _ = model_and_inputs("t5")
    model.eval()
    name = cache_name(model)
    prompt = 7
    counting = StorageCounter([*model.parameters(), *model.buffers()])
    with counting, torch.no_grad():
        token = torch.zeros(2, 1, dtype=torch.long)
        given: dict[str, Any] = {"input_ids": torch.zeros(2, prompt, dtype=torch.long)}
        cache = encoded = None
        for _ in range(new):
            output = model(**given, decoder_input_ids=token, **{name: cache}, use_cache=True)
            cache, encoded = output[name], output.encoder_last_hidden_state
            given = {"encoder_outputs": (encoded,)}
            del output
            token = torch.zeros(2, 1, dtype=torch.long)
    found = estimate(model, torch.zeros(2, 1, dtype=torch.long), decode=(prompt, new))
    assert found.peak_bytes == counting.peak_bytes


def test_a_model_without_token_ids() -> None:
    with pytest.raises(InputsError, match="input_ids"):
        estimate(nn.Linear(3, 4), torch.ones(2, 3), decode=(1, 3))


def test_the_batch_size_is_named_where_it_is_missing() -> None:
    model, _ = model_and_inputs("llama")
    with pytest.raises(InputsError, match="decode= needs a batch size: give batch=1, or input_ids"):
        estimate(model, decode=(4, 4))
    found = fit(model, "t4-16gb", decode=(4, 4), vary=None)
    assert (
        found.shown.peak_bytes == estimate(model, batch=1, decode=(4, 4), gpu="t4-16gb").peak_bytes
    )


def timed(prompt: int, new: int) -> Any:
    model, _ = model_and_inputs("llama")
    return estimate(model, torch.zeros(2, 1, dtype=torch.long), decode=(prompt, new), gpu="t4-16gb")


def test_generation_takes_the_time_of_its_passes() -> None:
    found = timed(16, 9)
    time = found.generation
    assert time.num_passes == 8
    assert found.step_seconds == time.seconds
    assert time.seconds == pytest.approx(time.prompt_seconds + 8 * time.seconds_per_token)
    assert time.first_seconds <= time.last_seconds
    assert found.to_dict()["generation"]["seconds"] == time.seconds
    assert " for the prompt, then " in str(found)
    assert "\n  error " in str(found)


def test_passes_that_are_not_run_take_the_time_of_those_between_which_they_are() -> None:
    short, long = timed(16, 3).generation, timed(16, 33).generation
    assert long.first_seconds == pytest.approx(short.first_seconds)
    assert long.seconds - long.prompt_seconds == pytest.approx(32 * long.seconds_per_token)
    assert timed(16, 1).generation.seconds == timed(16, 1).generation.prompt_seconds


def test_a_cpu_or_a_forward_pass_has_no_time_of_generation() -> None:
    model, inputs = model_and_inputs("llama")
    assert estimate(model, inputs, gpu="t4-16gb").generation is None
    assert estimate(model, torch.zeros(2, 1, dtype=torch.long), decode=(4, 4)).generation is None
