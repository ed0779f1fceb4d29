"""How ``trtllm-bench throughput`` of TensorRT-LLM 1.0 and 1.1 runs a list of requests.

Input: a server, a model, lengths of requests. Output: a :class:`Queue`. Invariant: the numbers are
those of the bench's own sources, whether or not they suit the model.

The most requests and tokens of a pass are what tensorrt_llm/bench/build/tuning.py finds from the
elements in the checkpoint's files, without a look at latent attention. Prompts are not divided
(``enable_chunked_prefill`` is off, bench/benchmark/utils/general.py), and a request begins if there
is memory for all of its tokens (``GUARANTEED_NO_EVICT``). Passes that only decode are CUDA graphs
of the batch sizes that the pages of figures name, to the next of which a batch is padded.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from tests.published.serving_models import MODELS
from tests.published.serving_queue import Queue
from torchfake.distributed.passes.capacity import most_users
from torchfake.distributed.passes.loads import Request
from torchfake.distributed.passes.pass_time import Load, PassTime
from torchfake.distributed.passes.rank_record import LayerWork, RankWork
from torchfake.distributed.serving.server import Server

_GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096)

_FREE = 0.925
"""The share of what weights and activations leave free that is given to the cache: the pages say
0.90 to 0.95."""

_ELEMENTS = {
    "Llama 3.1 8B": 8.03e9, "Llama 3.3 70B": 70.6e9, "Llama 3.1 405B": 405.9e9,
    "Qwen3-30B-A3B": 30.5e9, "Qwen3-235B-A22B": 235.1e9, "DeepSeek-R1": 684.5e9,
}  # fmt: skip
"""Values of the checkpoints."""

_BYTES = {"fp8": 1.0, "fp8-block": 1.0, "nvfp4": 0.5}
"""Bytes of an element by ``BYTES_PER_ELEM``, of the formats in ``TUNED_QUANTS``."""

_SHRUNK = 0.5625
"""Elements in the files of a checkpoint in nvfp4 for each value: two share one, 16 a scale."""


class Limits(NamedTuple):
    """What a rank runs in a pass, at most."""

    sequences: int = 2048
    tokens: int = 8192


def limits(server: Server, on: Any, request: Request) -> Limits:
    """What ``calc_engine_setting`` and ``get_settings`` choose; for other formats than those that
    they know, defaults.
    """
    if on.weights not in _BYTES:
        return Limits()
    config = _config(on.model)
    heads = max(on.num_gpus, config.num_key_value_heads)
    width = _width(on.model, config)
    token = 2 * config.num_hidden_layers * heads * width * (1 if on.cache == "fp8" else 2)
    shrunk = _SHRUNK if on.weights == "nvfp4" else 1.0
    held = _ELEMENTS[on.model] * shrunk * _BYTES[on.weights]
    free = (server.machine.gpu.total_memory * on.num_gpus - held) * _FREE
    return tuned(free / (token * (request.prompt + request.answer)), request)


def tuned(fitting: float, request: Request) -> Limits:
    """What ``finetune_setting`` makes of the number of requests that fit by its count."""
    raw = min(fitting, 4096)
    tokens = min(raw * (1 + request.prompt / request.answer), 32768)
    step = 32 if raw < 256 else 128 if raw < 1024 else 256
    sequences = max(64, step * math.ceil(raw / step))
    step = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    tokens = max(2048, step * math.ceil(tokens / step))
    return Limits(sequences, max(tokens, request.prompt + sequences))


def queue_of(server: Server, on: Any, request: Request) -> Queue:
    """The list of requests of these lengths, on ranks of `ep` of each its own."""
    server = replace(server, utilization=1.0)
    most = limits(server, on, request)
    serve = replace(server.serve, context=request.prompt + request.answer, prompt=request.prompt)
    room = most_users(_unwindowed(server.work), serve, round(server.memory(1).cache * _FREE))
    users = min(room, most.sequences)
    sizes = sorted({*(size for size in _GRAPHS if size < most.sequences), most.sequences})

    def time_of(load: Load) -> PassTime:
        if not load.prompt_tokens:  # tokens that fill up a graph have no cache
            own = load.users / on.ep
            padded = min(size for size in sizes if size >= min(own, most.sequences)) * on.ep
            load = replace(load, users=padded, context=load.context * load.users / padded)
        return server.time_of(replace(load, is_even=True))

    return Queue(time_of, users * on.ep, request, most.tokens, on.ep)


def _config(model: str) -> Any:
    import transformers

    family, options = MODELS[model]
    return getattr(transformers, f"{family}Config")(**options)


def _width(model: str, config: Any) -> int:
    """``head_dim``, which is the hidden size by the heads where config.json has none."""
    has_none = MODELS[model][0] == "DeepseekV3"
    of_heads = int(config.hidden_size // config.num_attention_heads)
    return of_heads if has_none else int(config.head_dim)


def _unwindowed(work: RankWork) -> RankWork:
    """TensorRT-LLM caches whole sequences of layers with windows, unless it is told the windows."""

    def whole(layer: LayerWork) -> LayerWork:
        return replace(layer, pages=tuple(replace(page, window=None) for page in layer.pages))

    return replace(work, layers=tuple(map(whole, work.layers)))
