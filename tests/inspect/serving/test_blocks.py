"""Blocks of an engine: computed bytes are those of real caches where both are the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.inspect.memory.memory_oracle import StorageCounter
from tests.inspect.serving.served_models import served_model
from torchfake import Serve, estimate
from torchfake.inspect.serving.cache_record import ServedCache


def cached(name: str, serve: Serve) -> ServedCache:
    found = estimate(served_model(name), serve=serve).cache
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "falcon_h1", "mamba", "qwen3_next"])
def test_whole_blocks_are_the_static_cache(name: str) -> None:
    """But for its counters, of 8 bytes for a layer with keys; 40 tokens take three blocks of 16."""
    static = cached(name, Serve(48, 3, cache="static"))
    counters = 8 * sum("Static" in layer.kind for layer in static.layers)
    assert cached(name, Serve(40, 3)).num_bytes == static.num_bytes - counters


def peak_of_pass(model: nn.Module, rows: int, length: int) -> int:
    """Of a real pass without a cache."""
    ids = torch.zeros(rows, length, dtype=torch.long)
    counter = StorageCounter([*model.parameters(), *model.buffers(), ids])
    with counter, torch.no_grad():
        model(input_ids=ids, use_cache=False, logits_to_keep=1)
    return counter.peak_bytes


@pytest.mark.parametrize(
    ("name", "options", "prompts"),
    [
        ("llama", {"prompt": 21}, (1, 21)),
        ("deepseek_v3", {"prompt": 7, "prefill": 21}, (3, 7)),
        ("gemma3", {"prefill": 9}, (1, 9)),
        ("gpt_oss", {"prompt": 7, "prefill": 21}, (3, 7)),
    ],
    ids=str,
)
def test_a_pass_holds_what_it_holds_without_a_cache(
    name: str, options: dict[str, int], prompts: tuple[int, int]
) -> None:
    """Beside the pool; prompts in one pass, and then a token of each user."""
    model, users = served_model(name), 5
    found = estimate(model, serve=Serve(30, users, **options))
    assert found.cache is not None
    passes = [peak_of_pass(model, *shape) for shape in (prompts, (users, 1))]
    assert found.peak_bytes == max(passes) + found.cache.num_bytes


def test_windows() -> None:
    """A window of 8 of 40 tokens, blocks of 4: the sequence that is read has all of its tokens in
    blocks, and one block more; of the others 8 tokens are seen.
    """
    layers = cached("gemma3", Serve(40, 3, block_size=4)).layers
    page = 4 * 2 * 2 * 8 * 4  # tokens, keys and values, heads, width, float32
    assert layers[0].kind == "window of 8"
    assert layers[0].num_bytes == page * ((10 + 1) + 2 * (2 + 1))
    assert layers[1].num_bytes == page * 3 * 10
    in_pieces = cached("gemma3", Serve(40, 3, block_size=4, prefill=12)).layers
    assert in_pieces[0].num_bytes == page * ((5 + 1) + 2 * (2 + 1))


@pytest.mark.parametrize(
    ("dtype", "vector"), [("fp8", 8), ("int8", 8 + 4), ("int4", 4 + 4), (torch.bfloat16, 16)]
)
def test_dtypes(dtype: object, vector: int) -> None:
    """Bytes of a key of 8 values, with its scale."""
    found = cached("llama", Serve(16, cache_dtype=dtype))  # type: ignore[arg-type]
    assert found.num_bytes == 16 * 4 * 2 * 2 * vector  # tokens, layers, heads, keys and values


def test_pages_are_those_of_continuous_batching() -> None:
    from transformers.generation.continuous_batching.cache_allocators import (
        FullAttentionCacheAllocator,
    )

    page = FullAttentionCacheAllocator.get_bytes_per_page(2, 8, torch.float32, 16)
    assert cached("llama", Serve(16)).num_bytes == 4 * page
