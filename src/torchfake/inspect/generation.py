"""Generation with a cache of keys and values: the prompt, and one token after the other.

Enters: a twin, a ledger, the lengths. Leaves: books of the two passes that can hold most.
Invariant: what is held is what a greedy loop holds, which lets go of each output before the next
pass.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from torchfake.errors import InputsError
from torchfake.inspect.ledger import Ledger
from torchfake.inspect.subject import Twin, tensors_in


def generate(twin: Twin, ledger: Ledger, prompt: int, new_tokens: int) -> None:
    """The prompt in one pass, then the last token, when the cache is largest.

    What lies between grows evenly from one to the other, and need not be run.
    """
    calls = _Calls(twin, prompt)
    _counted(twin, ledger, "prefill", calls.prefill(1))
    if new_tokens > 1:  # the first came from the prompt's pass
        before = twin.module(**calls.prefill(new_tokens - 1))
        inputs = calls.decode(before)
        del before
        _counted(twin, ledger, "decode", inputs)


def _counted(twin: Twin, ledger: Ledger, phase: str, inputs: dict[str, Any]) -> None:
    """One pass; the cache among its inputs and in its output is told apart."""
    ledger.begin(phase)
    ledger.enter([("", t) for t in tensors_in(inputs.get("past_key_values"))], "kv cache")
    ledger.enter([("", t) for t in tensors_in(inputs)], "inputs")
    with ledger.open():
        output = twin.module(**inputs)
        ledger.reassign([("", t) for t in tensors_in(_cache(output))], "kv cache")
        ledger.end_of_forward()
        ledger.over()
    del output, inputs


def _are_ids(found: Any) -> bool:
    is_tensor = isinstance(found, torch.Tensor)
    return is_tensor and not found.is_floating_point() and found.dim() == 2


class _Calls:
    """The arguments of a model's passes, as ``generate`` of transformers gives them."""

    def __init__(self, twin: Twin, prompt: int) -> None:
        found = twin.kwargs.get("input_ids", twin.args[0] if twin.args else None)
        if not _are_ids(found):
            raise InputsError(
                "decode= needs a model of input_ids [batch, tokens]: give them as inputs"
            )
        self.like: Any = found  # integers [batch, tokens]
        self.prompt = prompt
        takes = inspect.signature(twin.module.forward).parameters
        self.has_decoder = "decoder_input_ids" in takes
        self.more: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in takes:
            self.more["logits_to_keep"] = 1

    def prefill(self, generated: int) -> dict[str, Any]:
        """The prompt, and all but the last of so many tokens that came of it."""
        if self.has_decoder:
            ids = {"input_ids": self._ids(self.prompt), "decoder_input_ids": self._ids(generated)}
            return {**ids, **self.more}
        return {"input_ids": self._ids(self.prompt + generated - 1), **self.more}

    def decode(self, before: Any) -> dict[str, Any]:
        """One more token, after an output with a cache."""
        token = self._ids(1)
        after = {"past_key_values": _cache(before), **self.more}
        if self.has_decoder:
            encoded = (before.encoder_last_hidden_state,)
            return {"encoder_outputs": encoded, "decoder_input_ids": token, **after}
        return {"input_ids": token, **after}

    def _ids(self, length: int) -> torch.Tensor:
        batch = self.like.shape[0]
        return torch.zeros(batch, length, dtype=self.like.dtype, device=self.like.device)


def _cache(output: Any) -> Any:
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise InputsError("the model gives no past_key_values, so decode= has no cache to follow")
    return cache
