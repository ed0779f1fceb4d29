"""A server: replicas of a model, each on a mesh of GPUs, under a load.

Input: the work of a rank, a GPU, the sizes of a mesh. Output: a :class:`Server`: how long a pass
takes, how many users fit, and what a number of users sees. Invariant: all figures are of one
replica, unless they are said to be of all.

Ranks of ``tp`` are neighbours; then come those of ``ep``, stages, replicas. Each rank of ``ep`` has
users of its own, and experts that get tokens of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.passes.capacity import (
    MOST_SEQUENCES,
    Memory,
    cache_bytes,
    memory_of,
    most_users,
)
from torchfake.distributed.passes.loads import Request, Steady, reading_seconds, steady
from torchfake.distributed.passes.pass_time import Load, Machine, PassTime, seconds_of_pass
from torchfake.distributed.passes.rank_record import RankWork, Sent
from torchfake.inspect.serve import Serve
from torchfake.inspect.timing.collectives import GPUS_PER_NODE

_HIDDEN_STATES = 2
"""Tensors between stages: hidden states, and the residual that the next norm adds, which vLLM
(``IntermediateTensors``) and SGLang (``PPProxyTensors``) send beside them."""


@dataclass(frozen=True)
class Server:
    """One replica of a model on the ranks of a mesh."""

    work: RankWork  # of a rank of each stage of the pipeline, taken together
    machine: Machine
    axes: MeshAxes
    serve: Serve  # the lengths of sequences, the cache, the tokens of a pass
    utilization: float
    answer: int | None = None  # tokens of an answer; None: what a prompt leaves of the context

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.axes.num_ranks // self.replicas

    @property
    def replicas(self) -> int:
        """Copies of the model, each of which serves a part of the users."""
        return self.axes.data_ranks // self.axes.expert_ranks

    @property
    def request(self) -> Request:
        """The lengths of a request."""
        prompt = self.serve.prompt_length
        return Request(prompt, self.answer or self.serve.context - prompt)

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest pass."""
        assert self.serve.prefill is not None
        return self.serve.prefill

    @cached_property
    def stages(self) -> list[RankWork]:
        """The work of a rank of each stage of the pipeline."""
        number = self.axes.pipeline_ranks
        return [self.work.stage(i, number, self._boundary()) for i in range(number)]

    def _boundary(self) -> tuple[Sent, ...]:
        """What a stage sends: each rank of ``tp`` its part, which the next ones put together."""
        axes, work = self.axes, self.work
        num_bytes = _HIDDEN_STATES * work.hidden_size * work.dtype.itemsize
        split, inside = axes.tensor_ranks, axes.tensor_ranks * axes.expert_ranks
        is_near = inside * axes.pipeline_ranks <= GPUS_PER_NODE
        sent = Sent("send", axes.pipeline, 2, num_bytes / split, 2 if is_near else 1)
        in_node = min(split, GPUS_PER_NODE)
        whole = Sent("all_gather", axes.tensor, split, num_bytes, in_node)
        return (sent, whole) if split > 1 else (sent,)

    def memory(self, users: int) -> Memory:
        """The memory of the rank that has least left for the cache, with so many users of a
        replica.
        """
        memories = self._memories(-(-users // self.axes.expert_ranks))
        return min(memories, key=lambda memory: memory.cache)

    @cached_property
    def _weights(self) -> list[int]:
        """Bytes of the weights of a rank of each stage."""
        return [sum(map(self.machine.stored_bytes, stage.weights)) for stage in self.stages]

    def _memories(self, sequences: int) -> list[Memory]:
        """The memory of a rank of each stage, of which each decodes so many sequences."""
        return [
            memory_of(stage, num_bytes, self.machine, self.utilization, sequences)
            for stage, num_bytes in zip(self.stages, self._weights, strict=True)
        ]

    def most_users(self, context: int | None = None) -> int:
        """The most users of a replica whose sequences fit into the cache, each of `context` tokens;
        by default of the full context.
        """
        serve = self.serve if context is None else self.serve.resized("context", context)
        assert serve is not None
        many = self._fitting(serve, self._rooms(1))
        if self._rooms(many) != self._rooms(1):  # activations of more users leave less
            few = self._fitting(serve, self._rooms(max(many, 1)))
            while few < many:
                tried = (few + many + 1) // 2
                fits = self._fitting(serve, self._rooms(tried)) >= tried
                few, many = (tried, many) if fits else (few, tried - 1)
        return many * self.axes.expert_ranks

    def _rooms(self, sequences: int) -> list[int]:
        """Bytes for the cache of a rank of each stage that decodes so many sequences."""
        return [memory.cache for memory in self._memories(sequences)]

    def _fitting(self, serve: Serve, rooms: list[int]) -> int:
        """Sequences of a rank whose caches fit into so many bytes of each stage."""
        pairs = zip(self.stages, rooms, strict=True)
        return min(self.most_sequences, *(most_users(stage, serve, room) for stage, room in pairs))

    @property
    def most_sequences(self) -> int:
        """The most sequences of a rank that an engine decodes, whatever the memory."""
        return MOST_SEQUENCES * self.axes.pipeline_ranks

    def cache_bytes(self, users: int) -> int:
        """Bytes of the blocks of so many users on a GPU."""
        serve = replace(self.serve, users=max(-(-users // self.axes.expert_ranks), 1))
        return max(cache_bytes(stage, serve) for stage in self.stages) if users else 0

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of the states of one user on a GPU, which do not grow with the context."""
        return max(
            sum(number * page.state_bytes for page, number in stage.pages.items())
            for stage in self.stages
        )

    @cached_property
    def caches_tokens(self) -> bool:
        """Whether any layer caches something for each token, and not states alone."""
        return any(page.token_bytes for page in self.work.pages)

    def time_of(self, load: Load) -> PassTime:
        """The time between two tokens of a user. In a pipeline each stage computes for a part of
        the users while the other stages do for the others, and a token passes through all stages.
        """
        ranks = self.axes.expert_ranks
        part = replace(load.part(len(self.stages) * ranks), ranks=ranks)
        return sum(
            (seconds_of_pass(stage, part, self.machine) for stage in self.stages), PassTime()
        )

    @cached_property
    def alone_seconds(self) -> float:
        """Seconds to the first token of a single user."""

        def alone(load: Load) -> PassTime:
            load = replace(load, is_alone=True)
            parts = (seconds_of_pass(stage, load, self.machine) for stage in self.stages)
            return sum(parts, PassTime())

        return reading_seconds(alone, self.request, self.most_tokens)

    def with_users(self, users: int) -> Steady:
        """The steady state with so many users of a replica."""
        most = self.most_tokens * self.axes.expert_ranks
        ahead = 0 if self.machine.engine.is_eager else 1
        return steady(self.time_of, users, self.request, most, ahead, self.alone_seconds)
