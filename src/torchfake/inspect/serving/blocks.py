"""The paged cache of a serving engine: keys and values in blocks of tokens, from a common pool.

Input: a model, and a :class:`Serve`. Output: what each layer has in the pool, and a cache of
transformers that stands for the pool in a pass. Invariant: bytes per token and per sequence are
what the model caches when it is run on two lengths; rounding to blocks is computed.

Blocks are counted as in vLLM (``max_memory_usage_bytes`` of vllm/v1/kv_cache_interface.py). Full
attention takes as many blocks as a sequence's context fills. A sliding window takes the blocks of
the pass and of the earlier tokens that it still sees, and one more, because a window may begin
inside a block. A state takes one block per sequence. Unlike vLLM, only prompts that fit into one
pass are counted as being read, and groups of layers are not padded to equal pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.serve import INTEGERS, Serve, float_dtype
from torchfake.inspect.serving.cache_record import (
    STATES,
    LayerCache,
    ServedCache,
    layer_bytes,
    layers_of,
)
from torchfake.inspect.serving.caches import config_of, dynamic_cache
from torchfake.inspect.steps.generation import GreedyLoop
from torchfake.inspect.storages.storage_tracker import StorageTracker

_PROBES = (2, 3)
"""Sequence lengths that are run to measure what a layer caches; shorter than any window."""


@dataclass(frozen=True)
class Page:
    """What one layer caches per token and per sequence."""

    kind: str
    token_bytes: int  # per token
    state_bytes: int  # per sequence, of any length
    window: int | None  # length of the sliding window in tokens; None: full attention
    layer: int = 0  # the number of the layer in the cache
    vectors: tuple[int, ...] = ()  # widths of a token's keys and values, which have the cache dtype
    dtype: torch.dtype = torch.bfloat16  # of them in the model

    def stored(self, old: Serve, new: Serve) -> Page:
        """The same page in the cache dtype of another workload."""
        sizes = [
            sum(_vector_bytes(w, self.dtype, each) for w in self.vectors) for each in (old, new)
        ]
        return replace(self, token_bytes=self.token_bytes - sizes[0] + sizes[1])


def pages_of(fake_copy: FakeCopy, tracker: StorageTracker, serve: Serve, device: str) -> list[Page]:
    """What each layer of a model caches, in the cache dtype of `serve`.

    Raises:
        InputsError: if the model caches nothing, or has an encoder.
    """
    layers = [_layers_after(fake_copy, tracker, length) for length in _PROBES]
    config = config_of(fake_copy.module)
    found = [
        replace(_page(few, many, config, serve, device), layer=i)
        for i, (few, many) in enumerate(zip(*layers, strict=True))
    ]
    pages = [page for page in found if page.token_bytes or page.state_bytes]
    if not pages:
        raise InputsError(f"{type(fake_copy.module).__name__} caches nothing")
    return pages


def _layers_after(fake_copy: FakeCopy, tracker: StorageTracker, length: int) -> list[Any]:
    loop = GreedyLoop(fake_copy, tracker, 1, length, cache=dynamic_cache(fake_copy.module))
    if loop.has_decoder:
        raise InputsError(
            "a paged cache is for decoders: give serve= cache='dynamic' or cache='static'"
        )
    loop.run(length)
    return layers_of(loop.cache)


def _page(few: Any, many: Any, config: Any, serve: Serve, device: str) -> Page:
    sizes = [layer_bytes(layer, device) for layer in (few, many)]
    token_bytes = sizes[1] - sizes[0]
    state_bytes = sizes[0] - _PROBES[0] * token_bytes
    window = getattr(many, "sliding_window", None) if token_bytes else None
    keys, values = getattr(many, "keys", None), getattr(many, "values", None)
    if not token_bytes or keys is None or values is None:
        return Page(f"state ({type(many).__name__})", token_bytes, max(state_bytes, 0), window)
    # tensors other than keys and values, such as the keys of an indexer, keep their dtype
    plain = (keys.nbytes + values.nbytes) // _PROBES[1]
    latent = _latent_width(config)
    heads, widths, kind = keys.shape[1], [keys.shape[-1], values.shape[-1]], "full attention"
    if latent:
        heads, widths, kind = 1, [latent], f"latent of {latent} (MLA)"
    if window is not None:
        kind = f"window of {window:,}"
    if state_bytes > 0:
        kind += " and a state"
    stored = sum(_vector_bytes(width, keys.dtype, serve) for width in widths) * heads
    vectors = tuple(widths) * heads
    size = token_bytes - plain + stored
    return Page(kind, size, max(state_bytes, 0), window, vectors=vectors, dtype=keys.dtype)


def _latent_width(config: Any) -> int:
    """Numbers that an engine caches per token of latent attention (MLA), unlike transformers: the
    compressed latent and the rotated part of the key, which all heads share (DeepSeek-V2,
    sections 2.1.2 and 2.1.3). 0 for other attention.
    """
    latent = getattr(config, "kv_lora_rank", None)
    rotated = getattr(config, "qk_rope_head_dim", None)
    return latent + rotated if isinstance(latent, int) and isinstance(rotated, int) else 0


def _vector_bytes(width: int, dtype: torch.dtype, serve: Serve) -> int:
    """Bytes of the key or the value of one token and head.

    Floats have one scale per tensor, which is not counted. Integers have scales per token and head:
    int8 one float32 (``int8_per_token_head`` of vLLM), int4 a scale and a zero point in 16 bits
    each (as in LMDeploy).
    """
    bits = INTEGERS.get(serve.dtype_name or "", 0)
    if bits:
        return -(-width * bits // 8) + 4
    return width * (float_dtype(serve) or dtype).itemsize


def rows_of_pass(serve: Serve) -> tuple[int, int]:
    """The number of prompts that one pass reads, and the number of tokens of each prompt."""
    prompt = serve.prompt_length
    limit = serve.prefill or prompt
    return min(serve.users, max(1, limit // prompt)), min(prompt, limit)


def served_blocks(pages: Sequence[Page], serve: Serve) -> ServedCache:
    """The pool's record when each user has a full context."""
    layers = tuple(LayerCache(page.kind, pool_bytes(page, serve)) for page in pages)
    grows = any(page.token_bytes for page in pages)
    name = f"blocks of {serve.block_size} tokens" if grows else STATES
    return ServedCache(name, serve.users, serve.context, layers, tuple(pages))


def pool_bytes(page: Page, serve: Serve) -> int:
    """Bytes of the blocks of a layer when each user has a full context."""
    rows, length = rows_of_pass(serve)
    reading, decoding = _blocks(page, serve, length), _blocks(page, serve, 1)
    blocks = rows * reading + (serve.users - rows) * decoding
    return blocks * serve.block_size * page.token_bytes + serve.users * page.state_bytes


def _blocks(page: Page, serve: Serve, length: int) -> int:
    """The number of blocks of one sequence in a pass over `length` of its tokens."""
    if page.window is None:
        return -(-serve.context // serve.block_size)
    tokens = min(page.window - 1 + length, serve.context)
    return -(-tokens // serve.block_size) + 1


def cache_in_blocks(module: Any) -> Any:
    """A cache for one pass that passes on the keys and values of the pass alone: a paged attention
    kernel reads the others from the pool without a copy.
    """
    cache = dynamic_cache(module)
    for layer in layers_of(cache):
        if not hasattr(layer, "get_mask_sizes"):  # a state, which each pass computes anew
            continue
        layer.update = _passed_through
        if hasattr(layer, "cumulative_length"):
            layer.get_mask_sizes = _sees_the_pass
            vars(layer).pop("_sliding_window_tensor", None)  # a copy of the window's length
    return cache


def _sees_the_pass(queries: Any) -> tuple[int, int]:
    """Length and offset of the mask for `queries`: their number, in transformers 5.0 positions."""
    return (queries if isinstance(queries, int) else len(queries)), 0


def _passed_through(keys: Any, values: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    return keys, values
