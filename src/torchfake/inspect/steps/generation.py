"""Generation with a key-value cache: a pass over the prompt, then one token after the other.

Input: a fake copy of a model, a storage tracker, the lengths. Output: the tracker has recorded the
passes that can hold the most memory. Invariant: as much is held as in a greedy loop, which frees
each output before the next pass.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import FakeCopy, tensors_in
from torchfake.inspect.storages.storage_tracker import StorageTracker


def generate(fake_copy: FakeCopy, tracker: StorageTracker, prompt: int, new_tokens: int) -> None:
    """Run the prompt in one pass, then the first and the last of the others.

    The passes between these hold amounts between theirs, and need not be run.
    """
    ids = _token_ids(fake_copy)
    loop = GreedyLoop(fake_copy, tracker, ids.shape[0], prompt, dtype=ids.dtype)
    loop.run(1 if loop.has_decoder else prompt, "prefill")
    loop.run_last(new_tokens - 1)  # the first came from the prompt's pass


def _token_ids(fake_copy: FakeCopy) -> Any:
    """Integers [batch, tokens]."""
    found: Any = fake_copy.kwargs.get("input_ids", fake_copy.args[0] if fake_copy.args else None)
    is_tensor = isinstance(found, torch.Tensor)
    if not is_tensor or found.is_floating_point() or found.dim() != 2:
        raise InputsError("decode= needs a model of input_ids [batch, tokens]: give them as inputs")
    return found


class GreedyLoop:
    """Passes of a model over a cache, as ``generate`` of transformers makes them.

    A pass may be tracked or not; what is cached is the same.
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
        """The names of the arguments of its forward."""
        return tuple(inspect.signature(module.forward).parameters)

    def run(self, length: int, phase: str | None = None) -> None:
        """A pass over so many tokens; tracked as of `phase`, if that is given."""
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
            cache = _cache(output, self._cache_name)
            tracker.recategorize([("", t) for t in tensors_in(cache)], "kv cache")
            tracker.end_forward()
            tracker.end_step()
        self._keep(output)

    def run_last(self, steps: int) -> None:
        """The first and the last of so many passes over one token each; of a cache that is
        quantized now and then, also the last that quantizes it and the one before, when most waits.
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
        """Passes over so many tokens each, untracked and in fewer: the cache comes out the same."""
        at_once = number - 1 if _residual(self.cache)[0] <= piece else 0
        if at_once > 0:
            self.run(at_once * piece)
            number = 1  # a window is cut after a pass
        for _ in range(number):
            self.run(piece)

    def _skip(self, steps: int, period: int, since: int) -> None:
        """Passes over one token each, untracked and in fewer: the cache comes out the same."""
        while period and steps > 0:  # up to where it is quantized, and not beyond
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
        self.cache = _cache(output, self._cache_name)
        if self.has_decoder:
            self.encoded = output.encoder_last_hidden_state

    def _ids(self, length: int) -> torch.Tensor:
        return torch.zeros(self.batch, length, dtype=self._dtype, device=self._device)


def _cache_name(names: tuple[str, ...]) -> str:
    """What a forward with these arguments calls its cache: since transformers 5.24 ``cache``."""
    return next((n for n in ("cache", "cache_params") if n in names), "past_key_values")


def _residual(cache: Any) -> tuple[int, int]:
    """After how many tokens a cache quantizes them, and how many wait for it; 0, 0: it does not."""
    layers = getattr(cache, "layers", None) or (None,)
    period = getattr(layers[0], "residual_length", 0)
    keys = getattr(layers[0], "keys", None)
    return period, keys.shape[-2] if period and keys is not None and keys.dim() == 4 else 0


def _cuts(cache: Any) -> bool:
    """Whether layers cut what they cache after each pass, so that several tokens leave more memory
    behind than one: windows and states do.
    """
    layers = getattr(cache, "layers", None) or (None,)
    return any(getattr(x, "is_sliding", True) or hasattr(x, "conv_states") for x in layers)


def _cache(output: Any, name: str) -> Any:
    cache = getattr(output, name, None)
    if cache is None:
        raise InputsError(f"the model gives no {name}: there is no cache to track")
    return cache
