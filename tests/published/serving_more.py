"""More figures of servers that others have published: mixtures of experts, batches of one, int4.

They were listed before any of them was estimated; those of odd places are held out.

TensorRT-LLM, docs/source/developer-guide/perf-overview.md of v1.1 (requests of equal lengths that
are all there at the beginning, 3,000 or 1,500 of them; "DEP" is attention of each rank's own users
and shared experts), and its technical blog 1 (DeepSeek-R1 on 8 B200, without MTP). vLLM, nightly
benchmark of build 9515. SGLang 0.5 by SemiAnalysisAI/InferenceX#870. vLLM by
tenstorrent/tt-inference-server#356 and #340, and by the README of
huggingface.co/QuixiAI/DeepSeek-V3-0324-AWQ. SGLang 0.4.6 by the page "Speed Benchmark" of Qwen3's
documentation; its rows of GPTQ are left out, whose kernels the page calls unfinished.
"""

from __future__ import annotations

from dataclasses import replace

from tests.published.serving_rows import (
    On,
    Row,
    batch_of,
    each_token,
    full_load,
    whole_batch,
)
from torchfake.distributed.passes.loads import Request

_H200, _H100, _B200, _A100, _H20 = (
    "h200-141gb", "h100-80gb", "b200-180gb", "a100-80gb", "h20-96gb",
)  # fmt: skip
_30B, _235B, _R1, _70B = "Qwen3-30B-A3B", "Qwen3-235B-A22B", "DeepSeek-R1", "Llama 3.3 70B"
_1K = Request(1024, 1024)
_R1_H200 = On(_R1, _H200, 8, "fp8-block")
_R1_B200 = On(_R1, _B200, 8, "nvfp4", "fp8")

_LISTED = [
    full_load(On(_R1, _B200, 1, "nvfp4", "fp8", ep=4), 1000, 1000, 4 * 6463),
    full_load(On(_R1, _H200, 1, "fp8-block", "fp8", ep=8), 1000, 1000, 8 * 1627),
    full_load(On("gpt-oss-120b", _H200, 1, "mxfp4"), 1000, 1000, 6868),
    full_load(On("gpt-oss-20b", _H100, 1, "mxfp4"), 1000, 1000, 11557),
    full_load(On("gpt-oss-20b", _H200, 1, "mxfp4"), 1000, 1000, 13858),
    full_load(On(_235B, _H200, 1, "fp8", "fp8", ep=4), 1000, 1000, 4 * 3288),
    full_load(On(_235B, _H100, 1, "fp8", "fp8", ep=8), 1000, 1000, 8 * 1932),
    full_load(On(_235B, _B200, 1, "nvfp4", "fp8", ep=4), 1000, 1000, 4 * 5764),
    full_load(On(_30B, _B200, 1, "nvfp4", "fp8"), 1024, 8192, 13497, 1500),
    full_load(On(_30B, _B200, 1, "nvfp4", "fp8"), 8192, 1024, 5735, 1500),
    full_load(On(_70B, _B200, 1, "nvfp4", "fp8"), 1024, 8192, 3242, 1500),
    full_load(On(_70B, _B200, 1, "nvfp4", "fp8"), 8192, 1024, 1362, 1500),
    batch_of(_R1_B200, 1, 1024, 2048, 111),
    whole_batch(On("Mixtral 8x7B", _H200, 2), 8, Request(32, 128), 1917.4),
    whole_batch(On("Llama 3.1 8B", _H200), 8, Request(32, 128), 833.4),
    each_token(_R1_H200, 8, _1K, 12.8),
    each_token(_R1_H200, 16, _1K, 17.2),
    each_token(_R1_H200, 32, _1K, 25.6),
    each_token(_R1_H200, 64, _1K, 34.6),
    batch_of(_R1_B200, 4, 1024, 1024, 477.6),
    batch_of(_R1_B200, 8, 1024, 1024, 838.4),
    batch_of(_R1_B200, 16, 1024, 1024, 1354.4),
    batch_of(_R1_B200, 32, 1024, 1024, 2259.2),
    each_token(On(_R1, _H100, 8, "awq"), 1, Request(128, 128), 16.1),
    each_token(On(_30B, _A100), 1, Request(128, 128), 9.6),
    each_token(On(_30B, _A100), 1, Request(4096, 128), 10.3),
    batch_of(On("Qwen3-8B", _H20), 1, 1, 2048, 81.73),
    batch_of(On("Qwen3-8B", _H20, 1, "fp8-block"), 1, 1, 2048, 150.25),
    batch_of(On("Qwen3-8B", _H20, 1, "awq"), 1, 1, 2048, 144.11),
    batch_of(On("Qwen3-32B", _H20), 1, 1, 2048, 20.72),
    batch_of(On("Qwen3-32B", _H20, 1, "fp8-block"), 1, 1, 2048, 46.17),
    batch_of(On("Qwen3-32B", _H20, 1, "awq"), 1, 1, 2048, 47.67),
    batch_of(On(_30B, _H20), 1, 1, 2048, 137.18),
    batch_of(On(_30B, _H20, 1, "fp8-block"), 1, 1, 2048, 155.55),
    batch_of(On(_235B, _H20, 8), 1, 1, 2048, 74.50),
    batch_of(On(_235B, _H20, 4, "fp8-block"), 1, 1, 2048, 71.65),
    batch_of(On(_R1, _H200, 4, "awq"), 1, 2, 2048, 58.4),
    batch_of(On(_R1, _A100, 8, "awq"), 1, 2, 2048, 45.5),
]

MORE: list[Row] = [replace(row, place=place) for place, row in enumerate(_LISTED)]
