"""Rows of published figures of servers: what each is, and how the same is estimated."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.published.serving_bench import queue_of
from tests.published.serving_models import MODELS
from torchfake.distributed import serve
from torchfake.distributed.passes.capacity import cache_bytes
from torchfake.distributed.passes.engines import ENGINES, Engine
from torchfake.distributed.passes.loads import Request, TimeOf, static_batch, steady
from torchfake.distributed.passes.pass_time import Load
from torchfake.distributed.serving.server import Server
from torchfake.distributed.serving.serving_plan import ServingPlan

GIB = 2**30


class On(NamedTuple):
    """A model on GPUs."""

    model: str
    gpu: str
    tp: int = 1  # ranks that share each layer
    weights: str | None = None
    cache: str | None = None
    pass_tokens: int = 8192
    utilization: float = 0.9
    prompt: int = 1024
    ep: int = 1  # ranks that share experts alone, and have users of their own
    sequences: int = 1  # that are sampled at once

    @property
    def num_gpus(self) -> int:
        return self.tp * self.ep

    @property
    def text(self) -> str:
        number = f"{self.num_gpus} " if self.num_gpus > 1 else ""
        layout = " (ep)" if self.ep > 1 else ""
        return f"{self.model} in {self.weights or 'fp16'}, {number}{self.gpu}{layout}"

    def server(self, engine: Engine | None = None) -> Server:
        found = _server(self)
        machine = replace(found.machine, engine=engine or ENGINES["engine"])
        return replace(found, machine=machine)


@cache
def _server(on: On) -> Server:
    mesh = {"ep": on.ep} if on.ep > 1 else {"tp": on.tp}
    return _served(
        on.model, {}, on.prompt, gpu=on.gpu, mesh=mesh, weights=on.weights,
        cache_dtype=on.cache, pass_tokens=on.pass_tokens, utilization=on.utilization,
        suggests=False,
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
    place: int | None = None  # in a list whose rows of odd places are held out
    unlike: str = ""  # why the server was another one than is estimated: the row is no goal

    @property
    def kept_back(self) -> bool:
        """Whether no constant was chosen on the row."""
        if self.kind == "memory":
            return not self.was_read
        if self.place is not None:
            return self.place % 2 == 1
        return zlib.crc32(self.setting.encode()) % 2 == 1

    def ratio(self, engine: Engine | None = None) -> float:
        """The estimate as a multiple of the published figure."""
        return self.estimated(engine) / self.published


def batch_of(on: On, batch: int, prompt: int, answer: int, published: float) -> Row:
    request = Request(prompt, answer)

    def tokens(engine: Engine | None) -> float:
        time_of = on.server(engine).time_of
        return batch * answer / static_batch(time_of, batch, request, on.pass_tokens)

    setting = f"{on.text}, a batch of {batch} x {prompt} + {answer}"
    subject = on.model, prompt, answer
    return Row("batch", setting, published, "tokens/s", tokens, subject, on.num_gpus)


def first_token(on: On, prompt: int, published: float) -> Row:
    def milliseconds(engine: Engine | None) -> float:
        server = on.server(engine)
        serve = replace(server.serve, context=prompt + 128, prompt=prompt)
        return replace(server, serve=serve).alone_seconds * 1e3

    return Row("first", f"{on.text}, first token of {prompt}", published, "ms", milliseconds)


def full_load(on: On, prompt: int, answer: int, published: float, number: int = 3000) -> Row:
    """So many requests that are all there at the beginning, until the last one ends, as
    ``trtllm-bench throughput`` runs them.
    """

    def tokens(engine: Engine | None) -> float:
        request = Request(prompt, answer)
        return number * answer / queue_of(on.server(engine), on, request).seconds_of(number)

    setting = f"{on.text}, full load of {prompt} + {answer}"
    subject = on.model, prompt, answer, "full load"
    return Row("load", setting, published, "tokens/s", tokens, subject, on.num_gpus)


def seen_by_users(on: On, users: int, request: Request, *published: float) -> Iterator[Row]:
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


def each_token(on: On, users: int, request: Request, published: float) -> Row:
    """Milliseconds of a token."""

    def milliseconds(engine: Engine | None) -> float:
        found = steady(on.server(engine).time_of, users, request, on.pass_tokens)
        return found.seconds * 1e3

    setting = f"{on.text}, {users} x {request.prompt} + {request.answer}, each token"
    return Row("users", setting, published, "ms", milliseconds)


def first_token_of_users(on: On, users: int, request: Request, published: float) -> Row:
    """Milliseconds to the first token of ten requests of each of so many users, on average: the
    first requests come at once, each further one when an answer ends.
    """

    def milliseconds(engine: Engine | None) -> float:
        server = on.server(engine)
        time_of = server.time_of
        later = steady(time_of, users, request, on.pass_tokens).first_token_seconds
        first = mean_of_burst(time_of, users, request, on.pass_tokens)
        return (first + 9 * max(later, server.alone_seconds)) / 10 * 1e3

    setting = f"{on.text}, {users} x {request.prompt} + {request.answer}, first token"
    return Row("users", setting, published, "ms", milliseconds)


def mean_of_burst(time_of: TimeOf, users: int, request: Request, most: int) -> float:
    """Seconds to the first token of requests that come at once, on average: as many whole prompts
    as a pass has room for are read in it.
    """
    at_once = max(most // request.prompt, 1)
    sizes = [min(at_once, users - begun) for begun in range(0, users, at_once)]
    now = total = 0.0
    for size in sizes:
        now += time_of(Load(size * request.prompt, size)).seconds
        total += size * now
    return total / users


def whole_batch(on: On, batch: int, request: Request, published: float) -> Row:
    def milliseconds(engine: Engine | None) -> float:
        time_of = on.server(engine).time_of
        return static_batch(time_of, batch, request, on.pass_tokens) * 1e3

    setting = f"{on.text}, {batch} x {request.prompt} + {request.answer}, all of it"
    return Row("users", setting, published, "ms", milliseconds)


def memory_row(
    on: On, name: str, published: float, read: Callable[[Server, int], float], **how: Any
) -> Row:
    def found(engine: Engine | None) -> float:
        return read(on.server(engine), on.sequences)

    return Row("memory", f"{on.text}, {name}", published, "GiB", found, **how)


def weights(server: Server, users: int) -> float:
    return server.memory(users).weights / GIB


def peak(server: Server, users: int) -> float:
    return (server.memory(users).weights + server.memory(users).activations) / GIB


def activations(server: Server, users: int) -> float:
    return server.memory(users).activations / GIB


def cache_left(server: Server, users: int) -> float:
    return server.memory(users).cache / GIB


def cache_of(tokens: int) -> Callable[[Server, int], float]:
    """What so many tokens take."""

    def found(server: Server, users: int) -> float:
        one = cache_bytes(server.work, replace(server.serve, users=1))
        return tokens / (GIB * server.serve.context // one)

    return found


def weights_of_405b(_: Engine | None) -> float:
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
