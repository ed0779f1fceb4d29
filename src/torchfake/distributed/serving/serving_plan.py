"""The record of a served model: whether it fits, how fast it answers, and what bounds it.

Input: a server, a number of users. Output: a :class:`ServingPlan`, plain data. Invariant: all faces
(text, HTML, JSON) show these fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from torchfake.distributed.passes.attention import NOT_FUSED
from torchfake.distributed.passes.capacity import Memory
from torchfake.distributed.passes.formats import of_cache
from torchfake.distributed.passes.loads import Steady
from torchfake.distributed.serving.server import Server
from torchfake.inspect.records.record import Record
from torchfake.inspect.serve import value_bits
from torchfake.inspect.timing.hardware import name_of

LEFT_OUT = (
    "prefix sharing, speculative decoding, and prefill on GPUs of its own",
    "the network to users, tokenization, and bursts: requests arrive as others end; times are "
    "means, and percentiles are longer",
)
"""What real engines do, or wait for, and no figure contains."""

_OF_ENCODERS = (
    "{0}: the time and the memory of their encoder, whose weights are counted, and their tokens, "
    "which are a part of prompts"
)


class Compared(NamedTuple):
    """What estimates were compared with: rows of docs/serving.md that no constant was chosen on."""

    errors: dict[str, float]  # shares of published figures within which nine in ten estimates were
    gpus: tuple[str, ...]


DENSE = Compared(
    {"first_token_seconds": 0.23, "seconds_per_token": 0.16, "tokens_per_second": 0.16},
    ("a100-80gb", "b200-180gb", "h100-80gb", "h20-96gb", "h200-141gb", "l40s-48gb"),
)
WITH_EXPERTS = Compared(
    {"first_token_seconds": 0.59, "seconds_per_token": 0.35, "tokens_per_second": 0.35},
    ("a100-80gb", "b200-180gb", "h100-80gb", "h20-96gb", "h200-141gb"),
)

WITH_EXPERTS_IN_INTEGERS = Compared(
    {"first_token_seconds": 0.59, "seconds_per_token": 0.91, "tokens_per_second": 0.91},
    WITH_EXPERTS.gpus,
)
"""In the kernels of 2025, which were launched expert by expert."""

_TABLE = (1, 8, 32, 128, 512)


@dataclass(frozen=True, repr=False)
class ServingPlan(Record):
    """A model that is served to a number of users on GPUs of one kind."""

    target: str  # as given by the user
    server: Server
    users: int  # of all replicas together
    weights: str  # the format of the weights: "bf16", "fp8", ...
    notes: tuple[str, ...] = ()
    remedy: str = ""  # options with which all users fit, if they were looked for

    def serving(self, users: int) -> ServingPlan:
        """The plan with another number of users."""
        return replace(self, users=users)

    @property
    def class_name(self) -> str:
        """The class of the model."""
        return self.server.work.class_name

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.server.axes.num_ranks

    @property
    def num_bits(self) -> int:
        """Bits of a weight and of a value of the cache, taken together: fewer lose more."""
        stored, own = self.server.machine.weights, self.server.work.dtype
        of_weights = 8 * own.itemsize if stored is None else stored.bits
        return of_weights + value_bits(self.server.serve, own)

    @property
    def users_of_replica(self) -> int:
        """Users of the replica that has most."""
        return -(-self.users // self.server.replicas)

    @cached_property
    def memory(self) -> Memory:
        """The memory of the GPU that has least left for the cache, with the users under way."""
        return self.server.memory(max(self._under_way, 1))

    @property
    def _under_way(self) -> int:
        """The users of a replica whose requests do not wait."""
        most = self.most_users_on_average // self.server.replicas
        return min(self.users_of_replica, most)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in the cache of a GPU, beside states, on average over a full context."""
        server = self.server
        cached = (server.cache_bytes(1) - server.state_bytes) * server.caches_tokens
        return round(cached / server.serve.context)

    @property
    def cache_tokens(self) -> int | None:
        """Tokens of full contexts for which the cache of a GPU has room; None if only states are
        cached, which no token adds to.
        """
        if not self.server.caches_tokens:
            return None
        each = round(self.server.cache_bytes(1) / self.server.serve.context)
        return int(max(self.memory.cache, 0) / max(each, 1))

    @cached_property
    def most_users(self) -> int:
        """The most users that fit when each has a full context."""
        return self.server.most_users() * self.server.replicas

    @cached_property
    def most_users_on_average(self) -> int:
        """The most users under way whose sequences fit at their average length: beyond, requests
        wait. 0 where not even one full context fits: engines refuse to start.
        """
        if not self.most_users:
            return 0
        mean = max(round(self.server.request.mean_context), 2)
        return self.server.most_users(mean) * self.server.replicas

    @property
    def is_full(self) -> bool:
        """Whether the engine, not the memory, is what no more users have room in."""
        server = self.server
        most = server.most_sequences * server.axes.expert_ranks * server.replicas
        return self.most_users_on_average == most

    @property
    def fits(self) -> bool:
        """Whether the caches of all users fit, at least at their average length."""
        return self.users <= self.most_users_on_average

    @property
    def past(self) -> str:
        """What the first line says if sequences are longer than the model was made for: one with
        rotary positions runs on them all the same. "" if they are not.
        """
        positions = self.server.work.positions
        if positions is None or self.server.serve.context <= positions.number:
            return ""
        return f"past the {positions.number:,} tokens that the model was made for"

    @property
    def verdict(self) -> str:
        """``"yes"``; ``"tight"`` if the users fit at their average length only; or ``"no"``."""
        if not self.fits:
            return "no"
        return "yes" if self.users <= self.most_users else "tight"

    @property
    def first_token_seconds(self) -> float:
        """Seconds to the first token of a request that is alone."""
        return self.server.alone_seconds

    @cached_property
    def steady(self) -> Steady | None:
        """The steady state of a replica with its users, or with the most that fit at their average
        length if that is less; None if none fit.
        """
        return self.server.with_users(self._under_way) if self._under_way else None

    @property
    def queue_seconds(self) -> float | None:
        """Seconds that a request waits until there is memory for it, before its prompt is read: as
        many begin as end (Little 1961). 0 if all users fit; None if none does.
        """
        found = self.steady
        if found is None:
            return None
        begin = found.tokens_per_second / self.server.request.answer
        return max(self.users_of_replica - found.users, 0) / begin

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of answers per second, of all replicas."""
        found = self.steady
        return None if found is None else found.tokens_per_second * self.server.replicas

    @property
    def tokens_per_second_per_gpu(self) -> float | None:
        """Tokens of answers per second, of each GPU."""
        return None if self.steady is None else self.per_gpu(self.steady)

    def per_gpu(self, found: Steady) -> float:
        """Tokens of answers per second, of each GPU in a steady state."""
        return found.tokens_per_second / self.server.num_gpus

    @cached_property
    def by_users(self) -> tuple[tuple[int, Steady], ...]:
        """The steady state by the number of users of all replicas: 1, 8, 32, ..., and the most that
        fit at their average length.
        """
        most = self.most_users_on_average
        numbers = sorted({*(n for n in _TABLE if n < most), most, min(self.users, most)} - {0})
        return tuple((n, self.with_users(n)) for n in numbers)

    def with_users(self, number: int) -> Steady:
        """The steady state of the replica that has most of so many users of all replicas."""
        return self.server.with_users(-(-number // self.server.replicas))

    @property
    def errors(self) -> dict[str, float] | None:
        """How far nine in ten published figures were from estimates, as shares; None for GPUs that
        were not compared, and where times are upper bounds.
        """
        machine, compared = self.server.machine, self._compared
        is_known = name_of(machine.gpu) in compared.gpus and NOT_FUSED not in self.notes
        return dict(compared.errors) if is_known and not machine.engine.is_eager else None

    @property
    def expands_cache(self) -> bool:
        """Whether attention expands the cache, for a time that is in no figure."""
        machine, serve = self.server.machine, self.server.serve
        return bool(of_cache(serve.dtype_name, machine.gpu))

    @property
    def least_errors(self) -> dict[str, float]:
        """The errors; of GPUs that were not compared those of others, since theirs are not less."""
        return self._compared.errors

    @property
    def _compared(self) -> Compared:
        weights = self.server.machine.weights
        if not self.server.work.has_experts:
            return DENSE
        is_integer = weights is not None and weights.name in ("awq", "gptq")
        return WITH_EXPERTS_IN_INTEGERS if is_integer else WITH_EXPERTS

    @property
    def left_out(self) -> tuple[str, ...]:
        """What real servers do, and no figure contains; one line each."""
        if not self.not_given:
            return LEFT_OUT
        return (_OF_ENCODERS.format(self.not_given), *LEFT_OUT)

    @property
    def not_given(self) -> str:
        """What the model takes beside text, of which requests have none: ``"images"``, or ""."""
        return self.server.work.not_given

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON."""
        server, found = self.server, self.steady
        return {
            "target": self.target,
            "class_name": self.class_name,
            "fits": self.fits,
            "verdict": self.verdict,
            "users": self.users,
            "past": self.past,
            "most_users": self.most_users,
            "most_users_on_average": self.most_users_on_average,
            "gpu": server.machine.gpu.name,
            "gpus": self.num_gpus,
            "mesh": dict(server.axes.sizes),
            "weights": self.weights,
            "serve": {**server.serve.to_dict(), "users": self.users},
            "pass_tokens": server.most_tokens,
            "memory": self.memory.to_dict(),
            "cache_tokens": self.cache_tokens,
            "token_bytes": self.token_bytes,
            "state_bytes": self.server.state_bytes,
            "first_token_seconds": self.first_token_seconds,
            "steady": None if found is None else found.to_dict(),
            "queue_seconds": self.queue_seconds,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "errors": self.errors,
            "by_users": [
                {"of_all": n, **steady.to_dict(), "tokens_per_second_per_gpu": self.per_gpu(steady)}
                for n, steady in self.by_users
            ],
            "left_out": list(self.left_out),
            "notes": list(self.notes),
            **({"not_given": self.not_given} if self.not_given else {}),
            **({"remedy": self.remedy} if self.remedy else {}),
        }
