"""A served model as rows: whether it fits first, then how fast it answers.

Input: a ServingPlan. Output: blocks of rows. Invariant: its first line says whether all users fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfake.distributed.serving.loads import Steady
from torchfake.distributed.serving.serving_plan import ERROR, ServingPlan
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text, seconds_text
from torchfake.inspect.show.rows import Block, Column, Line, Row, as_lines

BOUND_BY = {
    "weights": "reading weights",
    "compute": "arithmetic",
    "cache": "reading the cache",
    "activations": "elementwise operators",
    "communication": "communication",
    "kernels": "starting kernels",
    "host": "the host",
}
"""What takes most of a pass, by the name of its part."""

_COLUMNS = (
    Column("users", str),
    Column("first token", seconds_text),
    Column("each token", seconds_text),
    Column("tokens/s", "{:,.0f}".format),
    Column("each user", "{:,.1f}/s".format, need=1),
    Column("each GPU", "{:,.0f}/s".format, need=2),
    Column("bound by", need=3),
)

_MEMORY = ("weights", "kv cache", "activations", "CUDA, NCCL", "CUDA graphs", "unused")


@shown.register
def _(found: ServingPlan, *, depth: int | None = None) -> list[Block]:
    memory = found.memory
    shares = {"weights": memory.weights / memory.total}
    lines = as_lines([*_answer(found), *_layout(found), *_memory(found), *_left_out(found)], shares)
    rows = [_row(number, steady, found) for number, steady in found.by_users]
    return [lines, Block(rows, _COLUMNS)] if rows else [lines]


def _answer(found: ServingPlan) -> Iterator[Line]:
    yield "fits", f"{found.verdict}: {_fitting(found)}"
    yield "serves", _served(found)
    steady = found.steady
    if steady is None:
        return
    alone = seconds_text(found.first_token_seconds)
    loaded = seconds_text(steady.first_token_seconds)
    users = f"{steady.users * found.server.replicas:,} users"
    yield "first token", f"{alone} alone, {loaded} with {users}" + " and a queue" * (not found.fits)
    each = f"{seconds_text(steady.seconds)}, {steady.tokens_per_second_per_user:,.1f} tokens/s"
    yield "each token", f"{each} for each user; bound by {BOUND_BY[steady.parts.bound_by]}"
    per_gpu = f"{found.tokens_per_second_per_gpu:,.0f} tokens/s on each GPU"
    yield "throughput", f"{found.tokens_per_second:,.0f} tokens/s, {per_gpu}"
    yield "  error", f"{100 * ERROR:.0f} % of most published figures"


def _fitting(found: ServingPlan) -> str:
    server = found.server
    gpus = server.num_gpus * server.replicas
    where = f"{gpus} {server.machine.gpu.name}"
    if found.most_users_on_average == 0:
        return f"no user of {server.serve.context:,} tokens fits on {where}{_remedy(found)}"
    most = f"{found.most_users:,} users x {server.serve.context:,} tokens on {where}"
    if found.verdict == "yes":
        return f"{found.users:,} of at most {most}"
    if found.verdict == "tight":
        return f"{found.users:,} users at their average length; with full contexts {most}"
    return f"from {found.most_users_on_average + 1:,} users on, requests wait; {most}"


def _remedy(found: ServingPlan) -> str:
    lacks = -found.memory.cache
    return f": {bytes_text(lacks)} are missing on each GPU" if lacks > 0 else ""


def _served(found: ServingPlan) -> str:
    server = found.server
    request, dtype = server.request, server.serve.dtype_name
    cache = f", cache in {dtype}" if dtype else ""
    lengths = f"prompts of {request.prompt:,}, answers of {request.answer:,} tokens"
    return f"{found.class_name} in {found.weights}{cache}; {lengths}"


def _layout(found: ServingPlan) -> Iterator[Line]:
    sizes = {name: size for name, size in found.server.axes.sizes.items() if size > 1}
    if sizes:
        yield "layout", " x ".join(f"{name} {size}" for name, size in sizes.items())


def _memory(found: ServingPlan) -> Iterator[Line]:
    memory = found.memory
    yield "memory", f"{bytes_text(memory.total)} of each GPU"
    for name, size in zip(_MEMORY, _sizes(found), strict=True):
        if size:
            yield f"  {name}", bytes_text(size) + _blocks(found, name)


def _sizes(found: ServingPlan) -> tuple[int, ...]:
    memory = found.memory
    cache = max(memory.cache, 0)
    return (
        memory.weights, cache, memory.activations, memory.context, memory.graphs, memory.unused,
    )  # fmt: skip


def _blocks(found: ServingPlan, name: str) -> str:
    if name != "kv cache":
        return ""
    taken = found.server.cache_bytes(found.users_of_replica)
    blocks = f"in blocks of {found.server.serve.block_size} tokens"
    return f" {blocks}; {bytes_text(taken)} for the users' full contexts"


def _left_out(found: ServingPlan) -> Iterator[Line]:
    for i, line in enumerate(found.left_out):
        yield ("left out" if i == 0 else "", line)
    for note in found.notes:
        yield "note", note


def _row(number: int, steady: Steady, found: ServingPlan) -> Row:
    rate = steady.tokens_per_second
    values = (
        steady.first_token_seconds,
        steady.seconds,
        rate * found.server.replicas,
        steady.tokens_per_second_per_user,
        rate / found.server.num_gpus,
        BOUND_BY[steady.parts.bound_by],
    )
    return Row(f"{number:,}", values)
