"""Caches of transformers: the peak is that of a greedy loop over all tokens on real tensors."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.inspect.memory.memory_oracle import StorageCounter
from tests.inspect.serving.served_models import SERVED, counted_loop, served_model
from tests.inspect.small_models import cache_name, model_and_inputs
from torchfake import Serve, estimate
from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import tensors_in

CASES = [(2, 11, 40, None), (3, 30, 31, None), (1, 21, 30, 6)]
"""Users, prompt, context, and tokens in a pass over prompts."""

HAS_FP8 = hasattr(importlib.import_module("transformers.cache_utils"), "Fp8QuantizedLayer")
"""Whether transformers has caches of fp8: 5.20, the newest version for Python 3.10, has none."""

NO_FP8 = "has no quantized cache: ValueError: Unknown quantization backend `fp8`"


def made(kind: str, config: Any, context: int) -> Any:
    from transformers import DynamicCache, QuantizedCache, StaticCache

    if config.model_type == "minimax":
        from transformers.models.minimax.modeling_minimax import MiniMaxCache

        return MiniMaxCache()
    if kind == "quantized":
        return QuantizedCache("fp8", config)
    if kind == "static":
        return StaticCache(config=config, max_cache_len=context)
    return DynamicCache(config=config)


def check(name: str, kind: str, case: tuple[int, int, int, int | None]) -> None:
    users, prompt, context, piece = case
    model = served_model(name)
    config = model.config.get_text_config(decoder=True)
    counted = counted_loop(model, made(kind, config, context), users, prompt, context, piece)
    dtype = "fp8" if kind == "quantized" else None
    serve = Serve(context, users, cache=kind, prompt=prompt, prefill=piece, cache_dtype=dtype)
    found = estimate(model, serve=serve)
    assert found.peak_bytes == counted.peak_bytes
    assert found.mode == "serving"
    assert any("sampling" in line for line in found.left_out)
    assert found.cache is not None
    assert found.cache.num_bytes <= found.peak_bytes


@pytest.mark.parametrize("name", SERVED)
def test_caches_are_byte_exact(name: str, request: pytest.FixtureRequest) -> None:
    """One cache and case for each kind of model in the suite; with ``--all-samples``
    (``nox -s exhaustive``) all.
    """
    all_of_them = list(itertools.product(("dynamic", "static"), CASES))
    if request.config.getoption("--all-samples"):
        chosen = all_of_them
    else:
        chosen = [all_of_them[list(SERVED).index(name) % len(all_of_them)]]
    if name == "minimax":  # which makes its own
        chosen = [("dynamic", case) for _, case in chosen]
    for kind, case in chosen:
        check(name, kind, case)


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_a_quantized_cache_is_byte_exact(case: Any) -> None:
    if HAS_FP8:
        check("llama", "quantized", case)
        return
    users, prompt, context, piece = case
    serve = Serve(
        context, users, cache="quantized", prompt=prompt, prefill=piece, cache_dtype="fp8"
    )
    with pytest.raises(InputsError, match=NO_FP8):
        estimate(served_model("llama"), serve=serve)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_an_encoder_and_decoder_are_byte_exact(kind: str) -> None:
    from transformers import DynamicCache, EncoderDecoderCache

    model, _ = model_and_inputs("t5")
    config, prompt, context = model.eval().config, 7, 16
    name = cache_name(model)
    cache = EncoderDecoderCache(made(kind, config, context), DynamicCache(config=config))
    counter = StorageCounter([*model.parameters(), *model.buffers(), *tensors_in(cache)])
    with counter, torch.no_grad():
        token, encoded = torch.zeros(2, 1, dtype=torch.long), None
        given: dict[str, Any] = {"input_ids": torch.zeros(2, prompt, dtype=torch.long)}
        for _ in range(context - prompt + 1):
            output = model(**given, decoder_input_ids=token, **{name: cache}, use_cache=True)
            encoded = output.encoder_last_hidden_state
            given = {"encoder_outputs": (encoded,)}
            del output
    found = estimate(model, serve=Serve(context, 2, cache=kind, prompt=prompt))
    assert found.peak_bytes == counter.peak_bytes


def test_a_cache_of_ones_own() -> None:
    from transformers import DynamicCache

    model = served_model("llama")

    def own(config: Any) -> Any:
        return DynamicCache()  # without the config: no windows

    found = estimate(model, serve=Serve(20, 2, cache=own))
    assert found.cache is not None
    assert found.cache.by_kind == {"DynamicLayer": (4, 4 * 2 * 2 * 2 * 20 * 8 * 4)}
    assert found.to_dict()["serve"]["cache"] == "own"


def test_generation_cuts_windows() -> None:
    """`decode=` of a model with windows, against a loop over all tokens."""
    from transformers import DynamicCache

    model = served_model("gemma3")
    counted = counted_loop(model, DynamicCache(config=model.config), 2, 11, 40)
    ids = torch.zeros(2, 1, dtype=torch.long)
    assert estimate(model, ids, decode=(11, 30)).peak_bytes == counted.peak_bytes


def _refusals() -> dict[str, Callable[[], Any]]:
    return {
        "leaves no room": lambda: Serve(8, prompt=8),
        "context=1 is not a whole number of 2": lambda: Serve(1),
        "is not one of paged, dynamic": lambda: Serve(8, cache="slidng"),
        "cache_dtype='int8' is not one of cache='dynamic'": lambda: Serve(
            8, cache="dynamic", cache_dtype="int8"
        ),
        "backend='quanto' has no cache of fp8": lambda: estimate(
            served_model("llama"),
            serve=Serve(8, cache="quantized", backend="quanto", cache_dtype="fp8"),
        ),
        "has a cache of its own": lambda: estimate(served_model("minimax"), serve=Serve(8)),
        "only full attention" if HAS_FP8 else NO_FP8: lambda: estimate(
            served_model("gemma3"), serve=Serve(8, cache="quantized", backend="fp8")
        ),
    }


@pytest.mark.parametrize("message", _refusals())
def test_refusals(message: str) -> None:
    with pytest.raises(InputsError, match=message):
        _refusals()[message]()
