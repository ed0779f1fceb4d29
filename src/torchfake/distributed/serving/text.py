"""A served model as rows: the answer first.

Input: a ServingPlan. Output: blocks of rows. Invariant: the first line says whether all users fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfake.distributed.parallelize.mesh_axes import larger
from torchfake.distributed.passes.loads import Steady
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text, duration_text, number_text, seconds_text
from torchfake.inspect.show.rows import Block, Column, Line, as_lines, table
from torchfake.inspect.timing.collectives import gpus_per_node, network_text

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

_WITH_BARS = ("weights", "kv cache", "states", "activations")


@shown.register
def _(found: ServingPlan, *, depth: int | None = None) -> list[Block]:
    sizes = _sizes(found)
    shares = {n: sizes[n] / found.memory.total for n in _WITH_BARS if n in sizes}
    lines = as_lines([*_answer(found), *_layout(found), *_memory(found), *_left_out(found)], shares)
    return [lines, *[table(found.by_users, _columns(found))] * bool(found.by_users)]


def _columns(found: ServingPlan) -> tuple[Column, ...]:
    """The columns of numbers of users, each with what each of them sees."""
    replicas = found.server.replicas
    each_gpu = Column("each GPU", lambda row: found.per_gpu(row[1]), "{:,.0f}/s".format, need=2)
    return (
        Column("users", lambda row: f"{row[0]:,}"),
        Column("first token", lambda row: row[1].first_token_seconds, seconds_text),
        Column("each token", lambda row: row[1].seconds, seconds_text),
        Column("tokens/s", lambda row: row[1].tokens_per_second * replicas, "{:,.0f}".format),
        Column(
            "each user", lambda row: row[1].tokens_per_second_per_user, "{:,.1f}/s".format, need=1
        ),
        *[each_gpu] * (found.num_gpus > 1),
        Column("bound by", lambda row: BOUND_BY[row[1].parts.bound_by], need=3),
    )


def _answer(found: ServingPlan) -> Iterator[Line]:
    past = f", {'but' if found.fits else 'and'} {found.past}" if found.past else ""
    yield "fits", f"{found.verdict}{past}: {_fitting(found)}"
    yield "  try", found.remedy
    yield "serves", served_text(found, formats_text(found))
    steady = found.steady
    if steady is None:
        return
    alone = seconds_text(found.first_token_seconds)
    loaded = seconds_text(steady.first_token_seconds)
    under_way = min(steady.users * found.server.replicas, found.users)
    users = number_text(under_way, "user")
    if found.queue_seconds:
        waits = f"; {duration_text(found.queue_seconds)} more for those that wait"
    else:
        waits = ""
    yield "first token", f"{alone} alone, {loaded} with {users}{waits}"
    each = f"{seconds_text(steady.seconds)}, {steady.tokens_per_second_per_user:,.1f} tokens/s"
    yield "each token", f"{each} for each user; {_bound_text(steady)}"
    per_gpu = f", {found.tokens_per_second_per_gpu:,.0f} tokens/s on each GPU"
    per_gpu *= found.num_gpus > 1
    yield "throughput", f"{found.tokens_per_second:,.0f} tokens/s{per_gpu}"
    yield "  error", error_text(found)


def _bound_text(found: Steady) -> str:
    """What takes most of a pass; the two largest parts, if none takes half of it."""
    shares = {name: n / found.seconds for name, n in found.parts.__dict__.items()}
    largest = sorted(shares, key=lambda name: -shares[name])[:2]
    first, second = (f"{BOUND_BY[name]}, {100 * shares[name]:.0f} % of it" for name in largest)
    return f"bound by {first}" if shares[largest[0]] >= 0.5 else f"mostly {first}, and {second}"


_QUANTITIES = {
    "first_token_seconds": "first token",
    "seconds_per_token": "each token",
    "tokens_per_second": "throughput",
}


def error_text(found: ServingPlan) -> str:
    """The errors that are known of such estimates."""
    if found.errors is None:
        return "not known: such a model on this GPU was not compared (docs/serving.md)"
    said = ", ".join(f"{_QUANTITIES[k]} {100 * share:.0f} %" for k, share in found.errors.items())
    return f"{said}: nine in ten held-out published figures (docs/serving.md)"


def _fitting(found: ServingPlan) -> str:
    server = found.server
    gpus, context = found.num_gpus, server.serve.context
    where = f"on {gpus} {server.machine.gpu.name}"
    beside = f", no {found.not_given}," * bool(found.not_given)
    if not found.most_users:
        users = f"{number_text(found.users, 'user')} x {context:,} tokens"
        return f"{users}{beside} {where}; {lacking_text(found)}"
    most, average = f"{found.most_users:,}", f"{found.most_users_on_average:,}"
    if found.verdict == "yes":
        users = f"{number_text(found.users, 'user')} x {context:,} tokens"
        lengths = f" with full contexts, {average} at their average length"
        by_engine = ", as many as an engine decodes" * found.is_full
        return f"{users}{beside} {where}; at most {most}{lengths * (average != most)}{by_engine}"
    full = f"{most} with full contexts of {context:,}{beside or ','} {where}"
    if found.verdict == "tight":
        return f"{found.users:,} users at the average length of their sequences, {full}"
    return f"{lacking_text(found)}; {full}"


def lacking_text(found: ServingPlan) -> str:
    """What the memory is too small for: the model, or some of the users."""
    if found.memory.cache <= 0:
        missing = bytes_text(-found.memory.cache)
        return f"even without users {missing} are missing on {gpu_text(found)}"
    if not found.most_users:
        room = "" if found.cache_tokens is None else f": there is room for {found.cache_tokens:,}"
        return f"not even one context of {found.server.serve.context:,} tokens fits{room}"
    average = f"{found.most_users_on_average:,} of {found.users:,} users"
    if found.is_full:
        return f"{average} at the same time, as many as an engine decodes; others wait"
    return f"{average} at their average length, others wait"


def gpu_text(found: ServingPlan) -> str:
    """``each GPU``, or ``the GPU`` if there is one."""
    return "each GPU" if found.num_gpus > 1 else "the GPU"


def served_text(found: ServingPlan, formats: str = "") -> str:
    """The model, and the lengths of its requests."""
    request = found.server.request
    lengths = f"prompts of {request.prompt:,}, answers of {request.answer:,} tokens"
    return f"{found.class_name}{formats}; {lengths}"


def formats_text(found: ServingPlan) -> str:
    """`` in bf16``, and the dtype of the cache if it is not the model's."""
    dtype = found.server.serve.dtype_name
    return f" in {found.weights}" + (f", cache in {dtype}" if dtype else "")


def _layout(found: ServingPlan) -> Iterator[Line]:
    sizes = larger(found.server.axes.sizes)
    if sizes:
        links = found.server.machine.links
        is_over_nodes = found.server.num_gpus > gpus_per_node(links)
        layout = " x ".join(f"{name} {size}" for name, size in sizes.items())
        yield "layout", layout + f"; {network_text(links)}" * is_over_nodes


def _memory(found: ServingPlan) -> Iterator[Line]:
    yield "memory", f"{bytes_text(found.memory.total)} of {gpu_text(found)}"
    for name, size in _sizes(found).items():
        if size:
            yield f"  {name}", bytes_text(size) + _blocks(found, name)


def _sizes(found: ServingPlan) -> dict[str, int]:
    memory = found.memory
    return {
        "weights": memory.weights,
        "kv cache" if found.server.caches_tokens else "states": max(memory.cache, 0),
        "activations": memory.activations,
        "CUDA, NCCL": memory.context,
        "CUDA graphs": memory.graphs,
        "kept free": memory.unused,
    }


def _blocks(found: ServingPlan, name: str) -> str:
    server, states = found.server, bytes_text(found.server.state_bytes)
    taken = bytes_text(server.cache_bytes(found.users_of_replica))
    if name == "states":
        most = number_text(max(found.memory.cache, 0) // max(server.state_bytes, 1), "user")
        return f", room for {most} of {states}, whatever the context; {taken} for the users"
    if name != "kv cache":
        return ""
    beside = f", with states of {states} for each user" * bool(server.state_bytes)
    blocks = f"in blocks of {server.serve.block_size} tokens"
    room = f"room for {found.cache_tokens:,} tokens of {bytes_text(found.token_bytes)}{beside}"
    room += _more_in_windows(found)
    return f" {blocks}, {room}; {taken} for the users' full contexts"


def _more_in_windows(found: ServingPlan) -> str:
    """Why more users fit than the tokens for which there is room tell, if they do."""
    server, tokens = found.server, found.cache_tokens or 0
    tokens *= server.replicas * server.axes.expert_ranks
    has_windows = any(page.window is not None for page in server.work.pages)
    if not has_windows or found.most_users * server.serve.context <= tokens:
        return ""
    full = number_text(found.most_users, "full context")
    return f" while prompts are read, and for {full}: windows then keep their last tokens alone"


def _left_out(found: ServingPlan) -> Iterator[Line]:
    yield "left out", found.left_out
    yield from (("note", note) for note in found.notes)
