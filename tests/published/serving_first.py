"""First tokens of mixtures of experts that others have published.

They were listed before any of them was estimated; those of odd places are held out.

vLLM of July 2025 by tenstorrent/tt-inference-server#340 and #356, one user: means of 8 requests of
128 tokens and of 4 of 1,024, of which the first was sent before, as a test, and may be cached.
Longer prompts of these sweeps begin like shorter ones, which vLLM caches: they are left out. SGLang
0.5.7 by SemiAnalysisAI/InferenceX#870: means over all requests, those of the beginning included,
when all users come at once. TensorRT-LLM by https://www.baseten.co/blog/
faster-mixtral-inference-with-tensorrt-llm-and-quantization: weights in int8, products in float16,
of the same bytes as ``fp8-weights``.
"""

from __future__ import annotations

from dataclasses import replace

from tests.published.serving_rows import On, Row, first_token, first_token_of_users
from torchfake.distributed.passes.loads import Request

_30B = On("Qwen3-30B-A3B", "a100-80gb")
_AWQ = On("DeepSeek-R1", "h100-80gb", 8, "awq")
_SGLANG = On("DeepSeek-R1", "h200-141gb", 8, "fp8-block", pass_tokens=32768)
_1K = Request(1024, 1024)

_LISTED = [
    first_token(_30B, 128, 35.7),
    first_token(_30B, 1024, 70.3),
    first_token(_AWQ, 128, 47.3),
    first_token(_AWQ, 1024, 105.3),
    first_token_of_users(_SGLANG, 8, _1K, 330.6),
    first_token_of_users(_SGLANG, 16, _1K, 356.0),
    first_token_of_users(_SGLANG, 32, _1K, 426.5),
    first_token_of_users(_SGLANG, 64, _1K, 423.1),
    first_token(On("Mixtral 8x7B", "a100-80gb", 1, "fp8-weights"), 512, 127),
]

FIRST: list[Row] = [replace(row, place=place) for place, row in enumerate(_LISTED)]
