"""optimum-quanto in serving: quantized caches, against counted greedy loops, and weights."""

from __future__ import annotations

import pytest
from optimum.quanto import freeze, qint4, qint8, quantize
from transformers import QuantizedCache

from tests.ecosystem.quantization.quantized_models import wide_llama
from tests.inspect.serving.served_models import counted_loop
from torchfake import Serve, estimate

pytestmark = pytest.mark.filterwarnings("ignore")

CASES = [(2, 11, 40, None), (1, 21, 300, None), (2, 256, 400, 128), (1, 130, 131, None)]
"""Users, prompt, context, and tokens in a pass over prompts; tokens are quantized 128 at a time."""


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("bits", [4, 2])
def test_caches(bits: int, case: tuple[int, int, int, int | None]) -> None:
    users, prompt, context, piece = case
    model = wide_llama()
    cache = QuantizedCache("quanto", model.config, nbits=bits)
    counted = counted_loop(model, cache, users, prompt, context, piece)
    serve = Serve(
        context, users, cache="quantized", cache_dtype=f"int{bits}", prompt=prompt, prefill=piece
    )
    assert estimate(model, serve=serve).peak_bytes == counted.peak_bytes


@pytest.mark.parametrize("kind", [qint8, qint4])
def test_weights(kind: object) -> None:
    """Parameters count for what they hold, packed values and scales."""
    model, plain = wide_llama(), wide_llama()
    quantize(model, weights=kind)
    freeze(model)
    serve = Serve(40, 2, cache="dynamic", prompt=11)
    found, whole = estimate(model, serve=serve), estimate(plain, serve=serve)
    assert found.cache == whole.cache
    held, all_of_it = (f.peak.by_category["parameters"] for f in (found, whole))
    assert held < all_of_it / 2
