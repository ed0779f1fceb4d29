"""Generation with a key-value cache: a pass over the prompt, then one token after the other.

Input: a fake copy of a model, a storage tracker, the lengths. Output: the tracker has recorded the
passes that can hold the most memory. Invariant: each pass holds what it holds in a greedy decoding
loop that frees each output before the next pass.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import FakeCopy, tensors_in
from torchfake.inspect.storages.storage_tracker import StorageTracker


def generate(fake_copy: FakeCopy, tracker: StorageTracker, prompt: int, new_tokens: int) -> None:
    """Run the pass over the prompt, then the first and the last pass over a single token.

    The passes between these two need not be run, because the memory that they hold is in between.
    """
    ids = _token_ids(fake_copy)
    loop = GreedyLoop(fake_copy, tracker, ids.shape[0], prompt, dtype=ids.dtype)
    loop.run(1 if loop.has_decoder else prompt, "prefill")
    loop.run_last(new_tokens - 1)  # the pass over the prompt gives the first new token


def _token_ids(fake_copy: FakeCopy) -> Any:
    """The token ids among the inputs, integers [batch, tokens]."""
    found: Any = fake_copy.kwargs.get("input_ids", fake_copy.args[0] if fake_copy.args else None)
    if not (fake_copy.args or fake_copy.kwargs):
        raise InputsError("decode= needs a batch size: give batch=1, or input_ids [batch, tokens]")
    is_tensor = isinstance(found, torch.Tensor)
    if not is_tensor or found.is_floating_point() or found.dim() != 2:
        raise InputsError(
            f"decode= needs input_ids [batch, tokens], and {type(fake_copy.module).__name__} is "
            "run on other inputs: leave it out for a forward pass, of batch= and seq="
        )
    return found


class GreedyLoop:
    """Forward passes of a model with a cache, as ``generate`` of transformers runs them.

    A pass may be tracked or not, with the same effect on the cache.
    """

    def __init__(
        self,
        fake_copy: FakeCopy,
        tracker: StorageTracker,
        batch: int,
        prompt: int,
        *,
        cache: Any = None,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        self.module, self.tracker, self.batch = fake_copy.module, tracker, batch
        self.cache, self.encoded = cache, None
        self._prompt, self._dtype = prompt, dtype
        self._device = fake_copy.device
        names = self.names_of(self.module)
        self.has_decoder = "decoder_input_ids" in names
        self._cache_name = _cache_name(names)
        self._options: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in names:
            self._options["logits_to_keep"] = 1

    @staticmethod
    def names_of(module: torch.nn.Module) -> tuple[str, ...]:
        """The names of the arguments of the module's forward."""
        return tuple(inspect.signature(module.forward).parameters)

    def run(self, length: int, phase: str | None = None) -> None:
        """Run a pass over `length` tokens per sequence; tracked only if a `phase` is given."""
        inputs = self._inputs(length)
        if phase is None:
            self._keep(self.module(**inputs))
            return
        tracker = self.tracker
        tracker.phase = phase
        tracker.register([("", t) for t in tensors_in(self.cache)], "kv cache")
        tracker.register([("", t) for t in tensors_in(inputs)], "inputs")
        with tracker.active():
            output = self.module(**inputs)
            cache = self._cache_of(output)
            tracker.recategorize([("", t) for t in tensors_in(cache)], "kv cache")
            tracker.end_forward()
            tracker.end_pass()
            tracker.end_step()
        self._keep(output)

    def run_last(self, steps: int) -> None:
        """Track the first and the last of `steps` passes over one token. If a cache is quantized
        periodically: also the last pass that quantizes, and the one before, when most is pending.
        """
        chosen = {1, steps}
        period, since = _residual(self.cache)
        if period:
            last = (since + steps) // period * period - since
            chosen |= {last - 1, last}
        at = 0
        for step in sorted(n for n in chosen if 0 < n <= steps):
            self._skip(step - 1 - at, period, since + at)
            self.run(1, "decode")
            at = step

    def skip_pieces(self, number: int, piece: int) -> None:
        """Fill the cache as `number` passes over `piece` tokens do, in fewer passes, untracked."""
        at_once = number - 1 if _residual(self.cache)[0] <= piece else 0
        if at_once > 0:
            self.run(at_once * piece)
            number = 1  # separate, because a sliding window is cut after each pass
        for _ in range(number):
            self.run(piece)

    def _skip(self, steps: int, period: int, since: int) -> None:
        """Fill the cache as `steps` passes over one token do, in fewer passes, untracked."""
        while period and steps > 0:  # each pass ends where the cache is quantized
            to_next = period - since % period
            whole = to_next + (steps - to_next) // period * period
            length = whole if to_next <= steps else steps
            self.run(length)
            steps, since = steps - length, since + length
        rest = 1 if _cuts(self.cache) else steps
        if steps > rest:
            self.run(steps - rest)
        if steps:
            self.run(rest)

    def _inputs(self, length: int) -> dict[str, Any]:
        found = dict(self._options)
        if self.cache is not None:
            found[self._cache_name] = self.cache
        if not self.has_decoder:
            return {"input_ids": self._ids(length), **found}
        if self.encoded is None:
            found["input_ids"] = self._ids(self._prompt)
        else:
            found["encoder_outputs"] = (self.encoded,)
        return {"decoder_input_ids": self._ids(length), **found}

    def _keep(self, output: Any) -> None:
        self.cache = self._cache_of(output)
        if self.has_decoder:
            self.encoded = output.encoder_last_hidden_state

    def _cache_of(self, output: Any) -> Any:
        cache = getattr(output, self._cache_name, None)
        if cache is None:
            raise InputsError(
                f"{type(self.module).__name__} gives no {self._cache_name} of keys and values, so "
                "it generates no tokens: leave out serve= and decode= for a forward pass, of "
                "batch= and seq="
            )
        return cache

    def _ids(self, length: int) -> torch.Tensor:
        return torch.zeros(self.batch, length, dtype=self._dtype, device=self._device)


def _cache_name(names: tuple[str, ...]) -> str:
    """The name of the cache among a forward's arguments: ``cache`` since transformers 5.24."""
    return next((n for n in ("cache", "cache_params") if n in names), "past_key_values")


def _residual(cache: Any) -> tuple[int, int]:
    """After how many tokens a cache quantizes them, and how many are not yet quantized; or 0, 0."""
    layers = getattr(cache, "layers", None) or (None,)
    period = getattr(layers[0], "residual_length", 0)
    keys = getattr(layers[0], "keys", None)
    return period, keys.shape[-2] if period and keys is not None and keys.dim() == 4 else 0


def _cuts(cache: Any) -> bool:
    """Whether layers cut their cache after each pass, as sliding windows and states do: a pass over
    several tokens then leaves a larger storage than a pass over one.
    """
    layers = getattr(cache, "layers", None) or (None,)
    return any(getattr(x, "is_sliding", True) or hasattr(x, "conv_states") for x in layers)
