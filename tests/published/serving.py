"""Figures of servers that others have published, and what a serving plan says of the same.

TensorRT-LLM, docs/source/performance.md of v0.5 and v0.6.1: static batches, all sequences alike,
output tokens over the whole time; first tokens at batch 1. docs/source/performance/perf-overview.md
of v0.21: as many requests under way as fit (``trtllm-bench throughput``).

NVIDIA NIM 1.8.0, "Performance" of its documentation of LLMs. vLLM, nightly benchmark of build 9515.
Memory: what vLLM logged in vllm-project/vllm#10517, #6746, #13061 and #21348, in GiB.

Rows of times whose text has an even CRC-32 are those that the constants of an engine were chosen on
(``chosen``); the others were only compared. The constants of memory are those of the log of #10517.

TensorRT-LLM stores keys and values in fp8 where weights are narrow, and so do NVIDIA's checkpoints.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.published.run import error_bar
from torchfake.distributed import serve
from torchfake.distributed.passes.capacity import cache_bytes, most_users
from torchfake.distributed.passes.engines import ENGINES, Engine
from torchfake.distributed.passes.loads import Request, static_batch, steady
from torchfake.distributed.serving.server import Server
from torchfake.distributed.serving.serving_plan import ServingPlan

GIB = 2**30

_LLAMA = {"max_position_embeddings": 131072}
_70B = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8,
}  # fmt: skip
_405B = {
    "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
    "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
_QWEN_MOE = {
    "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 4, "num_experts": 128,
    "num_experts_per_tok": 8,
}  # fmt: skip

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-J 6B": ("GPTJ", {}),
    "LLaMA 7B": ("Llama", _LLAMA),
    "LLaMA 70B": ("Llama", {**_LLAMA, **_70B}),
    "Llama 3.1 8B": ("Llama", {
        **_LLAMA, "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "Llama 3 70B": ("Llama", {**_LLAMA, **_70B, "vocab_size": 128256}),
    "Llama 3.3 70B": ("Llama", {**_LLAMA, **_70B, "vocab_size": 128256}),
    "Llama 3.1 405B": ("Llama", {**_LLAMA, **_405B}),
    "Llama 3.1 405B, 16 heads": ("Llama", {**_LLAMA, **_405B, "num_key_value_heads": 16}),
    "Qwen2.5 14B": ("Qwen2", {
        "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8}),
    "Qwen3-30B-A3B": ("Qwen3Moe", {
        **_QWEN_MOE, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
        "moe_intermediate_size": 768}),
    "Qwen3-235B-A22B": ("Qwen3Moe", {
        **_QWEN_MOE, "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
        "moe_intermediate_size": 1536}),
}  # fmt: skip


class On(NamedTuple):
    """A model on GPUs."""

    model: str
    gpu: str
    tp: int = 1
    weights: str | None = None
    cache: str | None = None
    pass_tokens: int = 8192
    utilization: float = 0.9
    prompt: int = 1024

    @property
    def text(self) -> str:
        number = f"{self.tp} " if self.tp > 1 else ""
        return f"{self.model} in {self.weights or 'fp16'}, {number}{self.gpu}"

    def server(self, engine: Engine | None = None) -> Server:
        found = _server(self)
        machine = replace(found.machine, engine=engine or ENGINES["engine"])
        return replace(found, machine=machine)


@cache
def _server(on: On) -> Server:
    return _served(
        on.model, {}, on.prompt, gpu=on.gpu, mesh={"tp": on.tp}, weights=on.weights,
        cache_dtype=on.cache, pass_tokens=on.pass_tokens, utilization=on.utilization,
    ).server  # fmt: skip


def _served(model: str, changes: dict[str, Any], prompt: int = 1024, **how: Any) -> ServingPlan:
    """A plan of the model of a config.json."""
    import transformers

    family, options = MODELS[model]
    config = getattr(transformers, f"{family}Config")(**options, **changes)
    config.architectures = [f"{family}ForCausalLM"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        config.to_json_file(path, use_diff=False)
        return serve(str(path), context=2 * prompt, prompt=prompt, **how)


Kind = str
"""batch: output tokens/s of a static batch. first: milliseconds to the first token of a request
that is alone. load: output tokens/s with all requests that fit. users: what users of a server see.
memory: GiB."""


@dataclass(frozen=True)
class Row:
    """One figure."""

    kind: Kind
    setting: str
    published: float
    unit: str
    estimated: Callable[[Engine | None], float]
    subject: tuple[Any, ...] = ()  # what GPUs and layouts are compared of
    num_gpus: int = 1
    was_read: bool = False  # a figure of memory that a constant was read from

    @property
    def kept_back(self) -> bool:
        """Whether no constant was chosen on the row."""
        if self.kind == "memory":
            return not self.was_read
        return zlib.crc32(self.setting.encode()) % 2 == 1

    def ratio(self, engine: Engine | None = None) -> float:
        """The estimate as a multiple of the published figure."""
        return self.estimated(engine) / self.published


def _batch(on: On, batch: int, prompt: int, answer: int, published: float) -> Row:
    request = Request(prompt, answer)

    def tokens(engine: Engine | None) -> float:
        time_of = on.server(engine).time_of
        return batch * answer / static_batch(time_of, batch, request, on.pass_tokens)

    setting = f"{on.text}, a batch of {batch} x {prompt} + {answer}"
    subject = on.model, prompt, answer
    return Row("batch", setting, published, "tokens/s", tokens, subject, on.tp)


def _first(on: On, prompt: int, published: float) -> Row:
    def milliseconds(engine: Engine | None) -> float:
        server = on.server(engine)
        serve = replace(server.serve, context=prompt + 128, prompt=prompt)
        return replace(server, serve=serve).alone_seconds * 1e3

    return Row("first", f"{on.text}, first token of {prompt}", published, "ms", milliseconds)


_FREE = 0.925
"""The share of what weights and activations leave free that TensorRT-LLM gives to the cache: the
page says 0.90 to 0.95."""

_SEQUENCES = 2048
"""Sequences of a pass, by default in TensorRT-LLM."""


def _load(on: On, prompt: int, answer: int, published: float) -> Row:
    def tokens(engine: Engine | None) -> float:
        server = replace(on.server(engine), utilization=1.0)
        serve = replace(server.serve, context=prompt + answer // 2, prompt=prompt)
        users = most_users(server.work, serve, round(server.memory.cache * _FREE))
        request = Request(prompt, answer)
        users = min(users, _SEQUENCES)
        return steady(server.time_of, users, request, on.pass_tokens).tokens_per_second

    setting = f"{on.text}, full load of {prompt} + {answer}"
    subject = on.model, prompt, answer, "full load"
    return Row("load", setting, published, "tokens/s", tokens, subject, on.tp)


def _users(on: On, users: int, request: Request, *published: float) -> Iterator[Row]:
    """Milliseconds to the first token and of each further one, and tokens/s of all."""
    names = ("first token", "each token", "throughput")
    for i, (name, figure) in enumerate(zip(names, published, strict=True)):

        def seen(engine: Engine | None, i: int = i) -> float:
            found = steady(on.server(engine).time_of, users, request, on.pass_tokens)
            times = found.first_token_seconds * 1e3, found.seconds * 1e3
            return (*times, found.tokens_per_second)[i]

        lengths = f"{users} x {request.prompt} + {request.answer}"
        unit = "tokens/s" if i == 2 else "ms"
        yield Row("users", f"{on.text}, {lengths}, {name}", figure, unit, seen)


def _whole_batch(on: On, batch: int, request: Request, published: float) -> Row:
    def milliseconds(engine: Engine | None) -> float:
        time_of = on.server(engine).time_of
        return static_batch(time_of, batch, request, on.pass_tokens) * 1e3

    setting = f"{on.text}, {batch} x {request.prompt} + {request.answer}, all of it"
    return Row("users", setting, published, "ms", milliseconds)


def _memory(
    on: On, name: str, published: float, read: Callable[[Server], float], **how: Any
) -> Row:
    def found(engine: Engine | None) -> float:
        return read(on.server(engine))

    return Row("memory", f"{on.text}, {name}", published, "GiB", found, **how)


def _weights(server: Server) -> float:
    return server.memory.weights / GIB


def _peak(server: Server) -> float:
    return (server.memory.weights + server.memory.activations) / GIB


def _cache(server: Server) -> float:
    return server.memory.cache / GIB


def _cache_of(tokens: int) -> Callable[[Server], float]:
    """What so many tokens take."""

    def found(server: Server) -> float:
        one = cache_bytes(server.work, replace(server.serve, users=1))
        return tokens / (GIB * server.serve.context // one)

    return found


def _weights_of_405b(_: Engine | None) -> float:
    """Of Meta's checkpoint in fp8, as it was when the log was written: keys and values had 16 heads
    (vllm-project/vllm#6689 says when that was corrected); attention, and the first and the last
    layer, are not quantized.
    """
    kept = [f"model.layers.{i}.self_attn.{name}_proj" for i in range(126) for name in "qkvo"]
    kept += [f"model.layers.{i}.mlp.{n}_proj" for i in (0, 125) for n in ("gate", "up", "down")]
    quantization = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head", *kept]}
    changes = {"quantization_config": quantization}
    found = _served("Llama 3.1 405B, 16 heads", changes, gpus=8, gpu="h100-80gb", pass_tokens=1024)
    return found.memory.weights / GIB


_H100_GPTJ = On("GPT-J 6B", "h100-80gb", 1, "fp8", "fp8")
_H100_7B = On("LLaMA 7B", "h100-80gb", 1, "fp8", "fp8")
_L40S_7B = On("LLaMA 7B", "l40s-48gb", 1, "fp8", "fp8")
_A100_GPTJ, _A100_7B = On("GPT-J 6B", "a100-80gb"), On("LLaMA 7B", "a100-80gb")
_A100_70B = On("LLaMA 70B", "a100-80gb", 4)
_NIM = On("Llama 3.3 70B", "h100-80gb", 2, "fp8", "fp8")
_RTX = On("Llama 3.1 8B", "rtx3090-24gb", pass_tokens=20000, prompt=20000)
_RTX_14B = On("Qwen2.5 14B", "rtx4090-24gb", 2, pass_tokens=2048, utilization=0.98)
_235B = On("Qwen3-235B-A22B", "h100-80gb", 4, "fp8-block")

ROWS = [
    _batch(_H100_GPTJ, 64, 128, 128, 10907),
    _batch(_H100_GPTJ, 64, 128, 2048, 6179),
    _batch(_H100_GPTJ, 64, 2048, 128, 2229),
    _batch(_H100_GPTJ, 64, 2048, 2048, 2980),
    _batch(_H100_7B, 64, 128, 128, 9193),
    _batch(_H100_7B, 64, 128, 2048, 5367),
    _batch(_H100_7B, 64, 2048, 128, 2058),
    _batch(_H100_7B, 32, 2048, 2048, 2230),
    _batch(_L40S_7B, 64, 128, 128, 3240),
    _batch(_L40S_7B, 64, 128, 2048, 1622),
    _batch(_L40S_7B, 32, 2048, 128, 581),
    _batch(_L40S_7B, 16, 2048, 2048, 531),
    _batch(_A100_GPTJ, 512, 128, 128, 6374),
    _batch(_A100_GPTJ, 60, 2048, 128, 670),
    _batch(_A100_7B, 384, 128, 128, 5586),
    _batch(_A100_7B, 60, 128, 2048, 1928),
    _batch(_A100_7B, 52, 2048, 128, 591),
    _batch(_A100_70B, 1280, 128, 128, 4 * 670),
    _batch(_A100_70B, 240, 128, 2048, 4 * 525),
    _first(_H100_GPTJ, 128, 7),
    _first(_H100_GPTJ, 2048, 29),
    _first(_H100_7B, 128, 7),
    _first(_H100_7B, 2048, 36),
    _first(_A100_7B, 128, 16),
    _first(_A100_7B, 2048, 133),
    _first(_A100_70B, 128, 47),
    _first(_A100_70B, 2048, 377),
    _load(On("Llama 3.1 8B", "h100-80gb", 1, "fp8", "fp8"), 1000, 1000, 15220),
    _load(On("Llama 3.1 8B", "h200-141gb", 1, "fp8", "fp8"), 1000, 1000, 17744),
    _load(_NIM, 1000, 1000, 4205),
    _load(On("Llama 3.3 70B", "h200-141gb", 1, "fp8", "fp8"), 2048, 2048, 2003),
    _load(On("Llama 3.3 70B", "b200-180gb", 1, "nvfp4", "fp8"), 1000, 1000, 7007),
    _load(On("Llama 3.1 405B", "h100-80gb", 8, "fp8", "fp8"), 1000, 1000, 2919),
    _load(On("Qwen3-30B-A3B", "b200-180gb", 1, "nvfp4", "fp8"), 1000, 1000, 25828),
    *_users(_NIM, 1, Request(5000, 500), 406.8, 18.58, 51.7),
    *_users(_NIM, 25, Request(5000, 500), 688.7, 38.75, 623.4),
    _whole_batch(On("Llama 3 70B", "h200-141gb", 4), 8, Request(32, 128), 2077.5),
    _memory(_RTX, "weights", 14.99, _weights),
    _memory(_RTX, "weights and the peak of a pass", 17.06, _peak, was_read=True),
    _memory(_RTX, "cache", 3.81, _cache, was_read=True),
    _memory(_RTX, "cache of 31,232 tokens", 3.81, _cache_of(31232)),
    Row("memory", "Llama 3.1 405B in fp8, 8 h100-80gb, weights", 57.75, "GiB", _weights_of_405b),
    _memory(_RTX_14B, "weights", 13.95, _weights),
    _memory(_RTX_14B, "cache", 8.69, _cache),
    _memory(_235B, "cache of 178,880 tokens", 8.11, _cache_of(178880)),
    _memory(_235B, "cache", 8.11, _cache),
]  # fmt: skip

TIMES = ("batch", "first", "load", "users")


def ranked(found: list[tuple[Row, float]]) -> tuple[int, int]:
    """How many pairs of GPUs and layouts are in the right order, by tokens/s of each GPU, and how
    many there are: of one model and equal lengths, more than 3 % apart.
    """
    right = pairs = 0
    for i, (row, ratio) in enumerate(found):
        for other, other_ratio in found[:i]:
            if row.subject and row.subject == other.subject:
                published = row.published / row.num_gpus * other.num_gpus / other.published
                if abs(published - 1) > 0.03:
                    pairs += 1
                    right += (published > 1) == (published * ratio / other_ratio > 1)
    return right, pairs


def use_of(row: Row) -> str:
    """What a row is for."""
    return "held out" if row.kept_back else ""


def table() -> Iterator[str]:
    """The lines of the table of docs/serving.md, and what follows from it."""
    yield "| setting | published | plan | ratio | |"
    yield "|---|---|---|---|---|"
    found = []
    for row in ROWS:
        estimate = row.estimated(None)
        found.append((row, estimate / row.published))
        shown = f"{estimate:,.0f}" if estimate >= 1000 else f"{estimate:.4g}"
        published = f"{row.published:,.4g}" if row.published < 1000 else f"{row.published:,.0f}"
        ratio = f"{estimate / row.published:.2f}"
        yield f"| {row.setting} | {published} {row.unit} | {shown} | {ratio} | {use_of(row)} |"
    yield ""
    for name, is_kept in (("chosen on", False), ("held out", True)):
        for kinds in (TIMES, ("memory",)):
            ratios = [r for row, r in found if row.kept_back is is_kept and row.kind in kinds]
            half, most = error_bar(ratios)
            what = "memory" if kinds == ("memory",) else "times"
            yield (
                f"{name}, {what}: {len(ratios)} rows, half within {half:.1%}, nine in ten within "
                f"{most:.1%}, worst {max(abs(ratio - 1) for ratio in ratios):.0%}"
            )
    right, pairs = ranked(found)
    yield f"pairs of GPUs and layouts that differ by more than 3 %: {right} of {pairs} in order"


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)  # noqa: T201
