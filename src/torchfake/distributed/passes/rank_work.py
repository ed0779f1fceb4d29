"""What one rank of a server holds and does: found by running the model's passes on fakes.

Input: a model, a layout, a :class:`~torchfake.Serve`. Output: a :class:`RankWork`, plain data that
says what a pass over any number of tokens does. Invariant: each figure was counted in a run of the
layers as they are laid out over the ranks; layers that do what an earlier one does are counted
again, not run again.

Engines fuse what transformers' modules do one by one. What they have to do all the same is what is
taken from the run: which weights are multiplied with how many rows, the bytes of other operators,
the pairs of queries and keys, and the messages between ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from torchfake._core.gpu_profiles import AlikeGpus, CudaProfile
from torchfake.distributed.layout import Layout
from torchfake.distributed.passes.attention import is_fused
from torchfake.distributed.passes.equal_layers import EqualLayers, cut, uncut
from torchfake.distributed.passes.rank_record import LayerWork, Multiplied, RankWork, Sent, Weight
from torchfake.distributed.ranks.mailboxes import Mailboxes
from torchfake.distributed.ranks.run_rank import Job, RankRun, run_rank
from torchfake.errors import InputsError
from torchfake.inspect.arithmetic.kinds import ATTENTION, MATMUL
from torchfake.inspect.contents.positions import Positions, positions_of
from torchfake.inspect.copies.workload import Workload, taken_beside_text
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.serve import Serve
from torchfake.inspect.serving.blocks import Page, rows_of_pass
from torchfake.inspect.serving.caches import config_of
from torchfake.inspect.steps.step import serving_step, step_of
from torchfake.inspect.timing.collectives import GPUS_PER_NODE
from torchfake.inspect.timing.commands import Command
from torchfake.observe import leaf_tensors

_BEFORE, _AFTER = "before", "after"  # what is outside of layers, by when it is run


def rank_work(
    build: Callable[[], nn.Module],
    parallelize: Callable[[nn.Module, Any], Any] | None,
    layout: Layout,
    serve: Serve,
    gpus: Sequence[CudaProfile],
    *,
    is_whole: bool = False,
) -> dict[CudaProfile, RankWork]:
    """Run the passes of a server as the first rank, and return what it holds and does.

    Args:
        build: builds the model, in a mode.
        parallelize: lays a model out over the mesh, or None for a single GPU.
        layout: the mesh.
        serve: the workload; its `prefill` is the number of tokens of the largest pass.
        gpus: the GPU of each rank; then others, for which it is asked too.
        is_whole: run all layers, also those that are alike.

    Returns:
        What the rank does on the first GPU, and on those of the others on which it runs alike.

    Raises:
        InputsError: if the model cannot be served or laid out.
    """
    found: dict[str, EqualLayers] = {}

    def laid_out(module: nn.Module, mesh: Any) -> Any:
        found["layers"] = uncut(module) if is_whole else cut(module)
        if parallelize is None:
            return module.to("cuda")
        return parallelize(module, mesh)

    device = torch.device("cuda", 0)
    workload = Workload(nn.Module(), device=device, gpu=gpus[0])
    step = serving_step(serve, step_of(workload, mode="inference"), ())
    alike = AlikeGpus(*gpus)
    job = Job(
        build, laid_out, None, step, layout, device, gpus[0],
        answer="typical", routing="balanced", look=_Seen.of, alike=alike,
    )  # fmt: skip
    try:
        run = run_rank(job, 0, Mailboxes().of_rank(0))
    except InputsError:
        if is_whole:
            raise
        # the model may look up a layer that was left out by its number
        return rank_work(build, parallelize, layout, serve, gpus, is_whole=True)
    first, *others = alike.profiles
    work = _Reader(run, found["layers"], serve, layout).read()
    on_others = {gpu: _activation_bytes(run.estimate.on(gpu)) for gpu in others}
    sizes = {first: work.activation_bytes, **on_others}
    return {gpu: replace(work, activation_bytes=size) for gpu, size in sizes.items()}


def _activation_bytes(estimate: Estimate) -> int:
    """Bytes at the peak that are neither parameters, buffers nor the cache."""
    kept = ("parameters", "buffers", "kv cache")
    return sum(size for name, size in estimate.peak.by_category.items() if name not in kept)


class _Seen(NamedTuple):
    """What is read off the module of a rank."""

    weights: dict[str, Weight]  # by each of its names; a tied one is the same object under both
    hidden_size: int
    positions: Positions | None
    vocab_size: int
    expanding: float  # FLOPs of attention over what is cached, as a multiple of those over prompts
    is_fused: bool
    not_given: str

    @staticmethod
    def of(module: nn.Module) -> _Seen:
        first: dict[int, Weight] = {}
        weights = {}
        tensors = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        for name, tensor in tensors:
            local = leaf_tensors(tensor)[0]
            is_parameter = isinstance(tensor, nn.Parameter)
            own = Weight(name, tuple(local.shape), local.dtype.itemsize, is_parameter)
            weights[name] = first.setdefault(id(tensor), own)
        config = config_of(module)
        vocab_size = getattr(config, "vocab_size", 0)
        known = config.hidden_size, positions_of(module), vocab_size
        beside = taken_beside_text(module)
        return _Seen(weights, *known, _expanding(config), is_fused(module), beside)


def _expanding(config: Any) -> float:
    """Latent attention multiplies queries with the latents themselves, which are wider than heads
    (DeepSeek-V2, section 2.1.2: the matrices that expand them are absorbed); over a prompt it
    expands them. 1 for other attention.
    """
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    widths = [width for name in names if isinstance(width := getattr(config, name, None), int)]
    if len(widths) < len(names):
        return 1.0
    latent, rotated, keys, values = widths
    return (2 * latent + rotated) / (keys + rotated + values)


class _Reader:
    """Reads from the commands of a run what each layer does."""

    def __init__(self, run: RankRun, layers: EqualLayers, serve: Serve, layout: Layout) -> None:
        self._run, self._layers, self._layout = run, layers, layout
        self._sizes = dict(zip(layout.axes, layout.shape, strict=True))
        self._rows, length = rows_of_pass(serve)
        self._tokens, self._length = self._rows * length, length
        self._seen: _Seen = run.seen
        self._by_module = defaultdict[str, list[Weight]](list)
        for name, weight in self._seen.weights.items():
            self._by_module[name.rpartition(".")[0]].append(weight)
        self._read_commands()
        self._held = defaultdict[Any, list[Weight]](list)
        last = {command.place.module for command in self._commands[_AFTER]}
        last -= {command.place.module for command in self._commands[_BEFORE]}
        for name, weight in self._seen.weights.items():
            if weight.name == name:
                outside = _AFTER if name.rpartition(".")[0] in last else _BEFORE
                self._held[layers.layer_of(name) or outside].append(weight)

    def _read_commands(self) -> None:
        """Sort the commands of the pass by layer. The decoder is the list that most of them are of,
        since a tower of vision may have more layers.
        """
        of_phase = defaultdict[str, list[Command]](list)
        for command in self._run.estimate.commands:
            of_phase[command.place.phase].append(command)
        keys = (self._layers.layer_of(each.place.module) for each in of_phase["prefill"])
        paths = Counter(key[0] for key in keys if key is not None)
        self._decoder = max(paths, key=paths.__getitem__, default="")
        self._commands = self._by_layer(of_phase["prefill"])
        self._launches = Counter(
            {key: len(found) for key, found in self._by_layer(of_phase["decode"]).items()}
        )

    def _by_layer(self, commands: Iterable[Command]) -> dict[Any, list[Command]]:
        """The commands of a pass, by the layer that they are of, or where they are outside."""
        found = defaultdict[Any, list[Command]](list)
        outside = _BEFORE
        for command in commands:
            key = self._layers.layer_of(command.place.module)
            outside = _AFTER if key is not None and key[0] == self._decoder else outside
            found[key or outside].append(command)
        return found

    def read(self) -> RankWork:
        estimate, cache = self._run.estimate, self._run.estimate.cache
        assert cache is not None
        pages = {page.layer: page for page in cache.pages}
        layers, towers = list[LayerWork](), list[LayerWork]()
        for path, like in self._layers.like.items():
            is_decoder = path == self._decoder
            known = {
                first: self._work((path, first), pages.get(first) if is_decoder else None)
                for first in dict.fromkeys(like)
            }
            (layers if is_decoder else towers).extend(known[first] for first in like)
        before = self._work(_BEFORE, None)
        if not layers:  # of a model without lists of layers
            before = replace(before, pages=tuple(pages.values()))
        return RankWork(
            estimate.class_name,
            tuple(layers),
            before,
            self._dtype(),
            _activation_bytes(estimate),
            self._tokens,
            self._work(_AFTER, None),
            tuple(towers),
            self._seen.hidden_size,
            self._seen.positions,
            self._seen.vocab_size,
            self._seen.is_fused,
            self._seen.not_given,
        )

    def _dtype(self) -> torch.dtype:
        """The dtype of most products."""
        found = Counter(
            command.work.dtype
            for commands in self._commands.values()
            for command in commands
            if command.work is not None and command.work.kind == MATMUL
        )
        return max(found, key=found.__getitem__, default=torch.bfloat16)

    def _work(self, key: Any, page: Page | None) -> LayerWork:
        commands = [c for c in self._commands[key] if c.work is not None or c.message is not None]
        held = tuple(self._held[key])
        multiplied, inner = [], 0.0
        products = Counter[str]()  # FLOPs, by module
        for command in commands:
            if command.work is not None and command.work.kind == MATMUL:
                products[command.place.module] += command.work.flops
        for module, flops in products.items():
            matrices = [weight for weight in self._by_module[module] if len(weight.shape) > 1]
            if not matrices:
                inner += flops
                continue
            rows = flops / (2 * sum(weight.num_values for weight in matrices))
            if len(matrices[0].shape) > 2:
                rows /= self._sharing
            of_sequences = rows == self._rows and self._length > 1
            rows = 1.0 if of_sequences else rows / self._tokens
            ranks = self._sizes.get("ep", 1)  # which send tokens to each other's experts
            multiplied += [
                Multiplied(weight, rows, of_sequences, ranks if len(weight.shape) > 2 else 1)
                for weight in matrices
            ]
        works = [c.work for c in commands if c.work is not None]
        attention = [work for work in works if work.kind in ATTENTION.values()]
        kernels = [name for name, kind in ATTENTION.items() if kind in {w.kind for w in attention}]
        pairs = self._rows * self._length**2  # torch's formulas count those above the diagonal
        attended = float(sum(work.flops for work in attention))
        others = sum(w.num_bytes for w in works if w.kind not in (MATMUL, *ATTENTION.values()))
        if page is not None and page.token_bytes and not kernels:  # scores are tensors of the model
            others -= self._bytes_of_scores(commands, products)
            attended, inner = inner, 0.0
        return LayerWork(
            held,
            tuple(multiplied),
            attended / pairs,
            next(iter(kernels), ""),
            others / self._tokens,
            inner / self._tokens,
            self._sent(commands),
            () if page is None else (page,),
            self._launches[key],
            attended / pairs * self._seen.expanding,
            len(self._commands[key]),
        )

    def _bytes_of_scores(self, commands: Sequence[Command], products: Iterable[str]) -> int:
        """Bytes that operators of attention move between its products, which engines fuse."""
        modules = {m for m in products if not any(len(w.shape) > 1 for w in self._by_module[m])}
        works = [c.work for c in commands if c.place.module in modules]
        return sum(w.num_bytes for w in works if w is not None and w.kind != MATMUL)

    @property
    def _sharing(self) -> int:
        """Ranks that get the same rows, and skip those of others' experts: of tp, with ``ep=1``."""
        return self._sizes.get("tp", 1) if self._sizes.get("ep") == 1 else 1

    def _sent(self, commands: Iterable[Command]) -> tuple[Sent, ...]:
        messages = [c.message for c in commands if c.message is not None]
        return tuple(
            Sent(
                m.collective,
                m.axis,
                m.group_size,
                m.num_bytes / self._tokens,
                self._layout.ranks_in_node(m.axis, m.group_size, GPUS_PER_NODE),
            )
            for m in messages
        )
