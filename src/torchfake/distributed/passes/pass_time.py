"""How long one pass of a serving engine takes.

Input: what a rank does in a pass, the tokens of the pass, a GPU. Output: a :class:`PassTime`, whose
parts say what bounds it. Invariant: a roofline for each weight: a product takes as long as reading
the weight or as its FLOPs, whichever is longer.

Decoding reads all weights once a pass (of experts, those that any token is sent to), and the cache
of each sequence; reading prompts is compute; messages of few tokens are latency.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property
from statistics import NormalDist

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.distributed.passes.engines import Engine
from torchfake.distributed.passes.formats import (
    FP4,
    FP8,
    INT8,
    MODEL,
    Format,
    is_quantized,
    rate_of,
)
from torchfake.distributed.passes.rank_record import LayerWork, Multiplied, RankWork, Sent, Weight
from torchfake.inspect.arithmetic.matrices import Product
from torchfake.inspect.serving.blocks import Page
from torchfake.inspect.timing.collectives import Links, seconds_of_message
from torchfake.inspect.timing.commands import Message
from torchfake.inspect.timing.efficiency import LAUNCH_SECONDS, Shares, shares_of
from torchfake.inspect.timing.hardware import Hardware
from torchfake.inspect.timing.tiles import share_of_peak
from torchfake.observe import RING_SHARES


@dataclass(frozen=True)
class Load:
    """The tokens of one pass."""

    prompt_tokens: float = 0  # read in this pass
    prompts: float = 0  # that end in this pass, each of which yields a token
    prompt_before: float = 0  # tokens of these prompts that earlier passes have read
    users: float = 0  # sequences that each decode a token
    context: float = 0  # tokens in the cache of each of them
    is_alone: bool = False  # whether ranks that process other sequences have no tokens
    ranks: int = 1  # which process other sequences, with as many tokens each on average
    is_even: bool = False  # whether each of them reads as many prompts, since some always wait

    @property
    def tokens(self) -> float:
        """Tokens of the pass."""
        return self.prompt_tokens + self.users

    def part(self, number: int) -> Load:
        """One of so many equal parts, which are computed one after the other."""
        parts = (self.prompt_tokens, self.prompts, self.users)
        tokens, prompts, users = (each / number for each in parts)
        return replace(self, prompt_tokens=tokens, prompts=prompts, users=users)

    def busiest(self, most: float) -> Load:
        """The tokens of the rank that reads most prompts, at most so many tokens of them; the other
        ranks wait for it, since prompts are not divided.
        """
        if self.ranks < 2 or self.is_alone or self.is_even or not self.prompts:
            return self
        most_prompts = self.prompts * max(most / self.prompt_tokens, 1.0)
        prompts = max(_largest(self.prompts, self.ranks), min(self.prompts * self.ranks, 1.0))
        prompts = min(prompts, most_prompts)
        tokens = self.prompt_tokens * prompts / self.prompts
        return replace(self, prompt_tokens=tokens, prompts=prompts)

    @property
    def sequences(self) -> float:
        """Sequences that yield a token."""
        return self.prompts + self.users


@dataclass(frozen=True)
class PassTime:
    """Seconds of a pass, by what takes them."""

    weights: float = 0.0  # reading weights, where that takes longer than the arithmetic
    compute: float = 0.0  # arithmetic of products and of attention over prompts
    cache: float = 0.0  # reading keys, values and states
    activations: float = 0.0  # other operators
    communication: float = 0.0
    kernels: float = 0.0  # starting and ending kernels
    host: float = 0.0  # scheduling, sampling, and what else is between passes

    @property
    def seconds(self) -> float:
        """All of them: one after the other."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    @property
    def bound_by(self) -> str:
        """The name of the longest part."""
        return max(fields(self), key=lambda field: getattr(self, field.name)).name

    def __add__(self, other: PassTime) -> PassTime:
        names = [field.name for field in fields(self)]
        return PassTime(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def times(self, number: float) -> PassTime:
        """The time of so many such parts."""
        return PassTime(**{f.name: getattr(self, f.name) * number for f in fields(self)})


@dataclass(frozen=True)
class Machine:
    """What passes run on: a GPU, its links, an engine, the formats of weights and cache."""

    gpu: CudaProfile
    hardware: Hardware
    links: Links
    engine: Engine
    weights: Format | None = None  # None: the dtype of the model

    @cached_property
    def shares(self) -> Shares:
        """The shares of peaks that large products reach."""
        return shares_of(self.gpu)

    def stored_bytes(self, weight: Weight) -> int:
        """Bytes of a weight as the engine holds it."""
        found = self.format_of(weight)
        if found is None:
            return weight.num_bytes
        *stack, rows, columns = weight.shape
        return (stack or [1])[0] * found.num_bytes(rows, columns)

    def format_of(self, weight: Weight) -> Format | None:
        """The format of a weight; None if it is kept in its dtype."""
        is_stored = not weight.is_kept and is_quantized(weight.name, weight.shape)
        return self.weights if is_stored else None


def seconds_of_pass(work: RankWork, load: Load, machine: Machine) -> PassTime:
    """The time of one pass of a rank."""
    counts = Counter(map(id, work.parts))
    unique = {id(part): part for part in work.parts}
    whole = PassTime()
    for key, number in counts.items():
        whole += _layer(work, unique[key], load, machine).times(number)
    beyond = max(_of_host(work, load, machine) - whole.seconds, 0.0)
    return whole + PassTime(host=machine.engine.step_seconds + beyond)


def _of_host(work: RankWork, load: Load, machine: Machine) -> float:
    """Seconds of the host, while the GPU computes: it launches the pass, and looks at the tokens of
    the last one (the overlap scheduler of TensorRT-LLM and SGLang, asynchronous scheduling in vLLM,
    each by default).
    """
    engine = machine.engine
    if engine.is_eager:
        return LAUNCH_SECONDS * sum(p.kernels(loops=load.prompt_tokens > 0) for p in work.parts)
    launching = engine.launch_seconds * len(work.layers) if load.prompt_tokens else 0.0
    return launching + engine.sequence_seconds * load.sequences


def _layer(work: RankWork, layer: LayerWork, load: Load, machine: Machine) -> PassTime:
    bandwidth = machine.hardware.memory_bytes
    found, of_all, sent = PassTime(), load, layer.sent
    loops = machine.engine.is_eager and load.prompt_tokens > 0
    load = load.busiest(work.pass_tokens)
    for multiplied in layer.products:
        is_shared = multiplied.ranks > 1  # by the tokens of all ranks
        found += _product(work, multiplied, of_all if is_shared else load, machine)
    peak = rate_of(MODEL, work.dtype, machine.hardware)
    inner = layer.token_flops * load.tokens / (peak * machine.shares.products)
    moved = layer.token_bytes * load.tokens * machine.engine.fused
    found += _over_cache(layer, load, peak, machine)
    return found + PassTime(
        compute=inner + _attention(layer, load, peak, machine),
        activations=moved / (bandwidth * machine.shares.memory),
        communication=sum(_message(_as_engines(s, work, machine), load, machine) for s in sent),
        kernels=machine.engine.kernel_seconds * (layer.kernels(loops=loops) - len(layer.sent)),
    )


def _product(work: RankWork, multiplied: Multiplied, load: Load, machine: Machine) -> PassTime:
    weight = multiplied.weight
    rows = load.sequences if multiplied.of_sequences else load.tokens * multiplied.rows
    rows /= multiplied.ranks if load.is_alone else 1
    if not rows:
        return PassTime()
    found = machine.format_of(weight)
    products = MODEL if found is None else found.operands_on(machine.gpu)
    peak = rate_of(products, work.dtype, machine.hardware) * machine.hardware.clock
    hit = _hit(multiplied, load)
    *stack, columns, depth = weight.shape
    number = (stack or [1])[0]
    if stack:
        hit, rows = _busiest(number, hit, rows, multiplied.ranks)
    product = Product(max(round(number * hit), 1), max(math.ceil(rows / hit), 1), columns, depth)
    share = machine.shares.products
    if product.rows <= _FEW_ROWS:
        least, reached = _instructions(multiplied, found, machine.gpu)
        share *= reached * rows / hit / (math.ceil(product.rows / least) * least)
    else:
        share *= share_of_peak(product, machine.gpu.multi_processor_count)
        share *= machine.shares.batched if stack else 1  # the experts of a layer, in one kernel
    share *= _share_of_operands(products, machine.engine)
    flops = 2 * weight.num_values * rows
    reading = hit * machine.stored_bytes(weight)
    reading /= machine.hardware.memory_bytes * machine.engine.weights_share
    computing = flops / (peak * share)
    both = _together(reading, computing, machine.engine)
    return PassTime(weights=both) if reading >= computing else PassTime(compute=both)


def _share_of_operands(products: str, engine: Engine) -> float:
    shares = {MODEL: engine.products_share, FP4: engine.fp4_share}
    return shares.get(products, engine.narrow_share)


def _together(reading: float, computing: float, engine: Engine) -> float:
    """Seconds of a kernel that reads and computes at the same time."""
    norm = engine.overlap
    return float((reading**norm + computing**norm) ** (1 / norm))


_FEW_ROWS = 64
"""Products of at most so many rows read their weight once, and multiply each tile of it with all
rows: nothing but the weight is loaded."""


def _instructions(
    multiplied: Multiplied, found: Format | None, gpu: CudaProfile
) -> tuple[int, float]:
    """The rows that an instruction of tensor cores multiplies, of which fewer take as long, and the
    share of the peak that such instructions reach.

    Those of Hopper (PTX, wgmma) multiply 64. Kernels that expand weights, and those of experts of
    few rows, use the earlier ones (PTX, mma), which reach 63 % on Hopper (Luo et al. 2024,
    "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking").
    """
    if gpu.major < 9:
        return 16, 1.0
    is_expanded = found is not None and found.operands_on(gpu) == MODEL
    return (16, 0.63) if is_expanded or len(multiplied.weight.shape) > 2 else (64, 1.0)


def _busiest(number: int, hit: float, rows: float, ranks: int) -> tuple[float, float]:
    """The share of experts that are hit, and the rows, of the rank that has most of both: the
    others wait for it. Tokens choose at random.
    """
    if ranks < 2:
        return hit, rows
    above = _largest(number * hit, ranks, 1 - hit) - number * hit
    return min(hit + above / number, 1.0), _largest(rows * number, ranks) / number


def _largest(mean: float, ranks: int, dispersion: float = 1.0) -> float:
    """The largest of the counts of so many ranks, whose variance is a multiple of their mean, as
    Blom (1958) estimates it.
    """
    above = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return mean + above * math.sqrt(mean * dispersion)


def _hit(multiplied: Multiplied, load: Load) -> float:
    """The share of a stack of experts that the tokens of a pass are sent to: each token, of all
    ranks that send any, chooses a share of them, and all are equally likely.
    """
    chosen = multiplied.rows / multiplied.ranks
    if multiplied.of_sequences or chosen >= 1:
        return 1.0
    tokens = load.tokens * (1 if load.is_alone else multiplied.ranks)
    return float(1 - (1 - chosen) ** max(tokens, 1.0))


def _attention(layer: LayerWork, load: Load, peak: float, machine: Machine) -> float:
    """Seconds of attention over prompts; and over the cache, where that is arithmetic."""
    if not layer.pair_flops:
        return 0.0
    kernel = machine.shares.attention["flash" if layer.attention == "" else layer.attention]
    window = layer.pages[0].window if layer.pages else None
    seen = load.prompt_before + load.prompt_tokens / max(load.prompts, 1.0) / 2
    pairs = load.prompt_tokens * (seen if window is None else min(seen, window))
    return layer.pair_flops * pairs / (peak * kernel[0])


def _over_cache(layer: LayerWork, load: Load, peak: float, machine: Machine) -> PassTime:
    """Attention of the tokens that are decoded: it reads the cache, and multiplies each key."""
    window = layer.pages[0].window if layer.pages else None
    length = load.context if window is None else min(load.context, window)
    engine = machine.engine
    share = machine.shares.products * engine.products_share
    reading = _cache_bytes(layer.pages, load)
    reading /= machine.hardware.memory_bytes * engine.cache_share
    computing = layer.cached_flops * load.users * length / (peak * share)
    both = _together(reading, computing, engine)
    return PassTime(cache=both) if reading >= computing else PassTime(compute=both)


def _cache_bytes(pages: tuple[Page, ...], load: Load) -> float:
    """Bytes of keys, values and states that a pass reads, and writes: states are both."""
    found = 0.0
    for page in pages:
        length = load.context if page.window is None else min(load.context, page.window)
        found += load.users * (page.token_bytes * length + 2 * page.state_bytes)
        found += load.prompt_tokens * page.token_bytes
    return found


_VALUE_BITS = {FP8: 8, INT8: 8, FP4: 4.5}
"""Bits of a value, with scales, that is sent to experts of narrow operands."""


def _as_engines(sent: Sent, work: RankWork, machine: Machine) -> Sent:
    """What engines send instead of a copy of each token for each of its experts: one to each rank
    at most (TensorRT-LLM and vLLM gather all tokens, and add up results by a reduce-scatter), there
    in the dtype of the products (DeepSeek-V3, section 3.3.3), back in the model's.
    """
    copies = sent.token_bytes / max(work.hidden_size * work.dtype.itemsize, 1)
    if sent.collective != "all_to_all" or copies < 1:
        return sent
    stored = machine.weights
    operands = MODEL if stored is None else stored.operands_on(machine.gpu)
    model = 8 * work.dtype.itemsize
    bits = (_VALUE_BITS.get(operands, model) + model) / 2  # on average, there and back
    share = min(sent.group_size / copies, 1.0) * bits / model
    return replace(sent, token_bytes=sent.token_bytes * share)


def _message(sent: Sent, load: Load, machine: Machine) -> float:
    """Seconds of a message: in a node, the kernels of engines write to all ranks at once while it
    is small; between nodes it is NCCL's.
    """
    if sent.group_size < 2:
        return 0.0
    ring = RING_SHARES.get(sent.collective)
    num_bytes = sent.token_bytes * load.tokens
    if sent.in_node < sent.group_size:
        message = Message(sent.collective, round(num_bytes), sent.axis, sent.group_size)
        return seconds_of_message(message, sent.in_node, machine.links)
    share = 1.0 if ring is None else ring(sent.group_size)
    latency = machine.engine.message_seconds
    return latency + num_bytes * share / (machine.links.link_bytes * machine.engine.link_share)
