"""HQQ: caches that transformers quantizes with it, against counted greedy loops."""

from __future__ import annotations

import pytest
from transformers import QuantizedCache

from tests.ecosystem.quantization.quantized_models import wide_llama
from tests.inspect.serving.served_models import counted_loop
from torchfake import Serve, estimate

pytestmark = pytest.mark.filterwarnings("ignore")

CASES = [(2, 11, 40, None), (1, 21, 300, None), (2, 256, 400, 128), (1, 130, 131, None)]
"""Users, prompt, context, and tokens in a pass over prompts; tokens are quantized 128 at a time."""


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
def test_caches(bits: int, case: tuple[int, int, int, int | None]) -> None:
    """HQQ asks whether its error has become smaller; it is taken to have, as long as it asks."""
    users, prompt, context, piece = case
    model = wide_llama()
    cache = QuantizedCache("hqq", model.config, nbits=bits)
    counted = counted_loop(model, cache, users, prompt, context, piece)
    serve = Serve(
        context, users, cache="quantized", cache_dtype=f"int{bits}", backend="hqq",
        prompt=prompt, prefill=piece,
    )  # fmt: skip
    found = estimate(model, serve=serve)
    assert found.peak_bytes == counted.peak_bytes
    assert found.answers
