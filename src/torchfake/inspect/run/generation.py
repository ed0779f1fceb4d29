"""Generation with a key-value cache: a pass over the prompt, then one token after the other.

Input: a fake copy of a model, a storage tracker, the lengths. Output: the tracker has recorded the
two passes that can hold the most memory. Invariant: as much is held as in a greedy loop, which
frees each output before the next pass. Called by: ``execution``.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from torchfake.errors import InputsError
from torchfake.inspect.run.storage_tracker import StorageTracker
from torchfake.inspect.run.workload import FakeCopy, tensors_in


def generate(fake_copy: FakeCopy, tracker: StorageTracker, prompt: int, new_tokens: int) -> None:
    """Run the prompt in one pass, then the last token, when the cache is largest.

    The passes between these hold amounts between theirs, and need not be run.
    """
    calls = _Calls(fake_copy, prompt)
    _run_pass(fake_copy, tracker, "prefill", calls.prefill(1))
    if new_tokens > 1:  # the first came from the prompt's pass
        before = fake_copy.module(**calls.prefill(new_tokens - 1))
        inputs = calls.decode(before)
        del before
        _run_pass(fake_copy, tracker, "decode", inputs)


def _run_pass(
    fake_copy: FakeCopy, tracker: StorageTracker, phase: str, inputs: dict[str, Any]
) -> None:
    """Track one pass; the cache in its inputs and in its output has its own category."""
    tracker.begin_phase(phase)
    tracker.register([("", t) for t in tensors_in(inputs.get("past_key_values"))], "kv cache")
    tracker.register([("", t) for t in tensors_in(inputs)], "inputs")
    with tracker.active():
        output = fake_copy.module(**inputs)
        tracker.recategorize([("", t) for t in tensors_in(_cache(output))], "kv cache")
        tracker.end_forward()
        tracker.end_step()
    del output, inputs


def _are_token_ids(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and not value.is_floating_point() and value.dim() == 2


class _Calls:
    """The arguments of a model's passes, as ``generate`` of transformers makes them."""

    def __init__(self, fake_copy: FakeCopy, prompt: int) -> None:
        found = fake_copy.kwargs.get("input_ids", fake_copy.args[0] if fake_copy.args else None)
        if not _are_token_ids(found):
            raise InputsError(
                "decode= needs a model of input_ids [batch, tokens]: give them as inputs"
            )
        self.token_ids: Any = found  # integers [batch, tokens]
        self.prompt = prompt
        parameters = inspect.signature(fake_copy.module.forward).parameters
        self.has_decoder = "decoder_input_ids" in parameters
        self.options: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in parameters:
            self.options["logits_to_keep"] = 1

    def prefill(self, generated: int) -> dict[str, Any]:
        """The prompt, and all but the last of so many generated tokens."""
        if self.has_decoder:
            ids = {"input_ids": self._ids(self.prompt), "decoder_input_ids": self._ids(generated)}
            return {**ids, **self.options}
        return {"input_ids": self._ids(self.prompt + generated - 1), **self.options}

    def decode(self, before: Any) -> dict[str, Any]:
        """The next token, given the output before it, which has the cache."""
        token = self._ids(1)
        cached = {"past_key_values": _cache(before), **self.options}
        if self.has_decoder:
            encoded = (before.encoder_last_hidden_state,)
            return {"encoder_outputs": encoded, "decoder_input_ids": token, **cached}
        return {"input_ids": token, **cached}

    def _ids(self, length: int) -> torch.Tensor:
        batch = self.token_ids.shape[0]
        return torch.zeros(batch, length, dtype=self.token_ids.dtype, device=self.token_ids.device)


def _cache(output: Any) -> Any:
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise InputsError("the model gives no past_key_values, so decode= has no cache to follow")
    return cache
