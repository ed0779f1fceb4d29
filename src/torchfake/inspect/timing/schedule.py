"""The beginning and the end of each command.

Input: commands in the order of the program, a GPU, links. Output: a :class:`Schedule`. Invariant:
CUDA's rules: the host launches one command after the other; a command begins when it has been
launched, all before it on its stream have ended, and the events that its stream waits for have
happened. Collectives in a node share its links, and those between nodes the network. Called by:
``inspect/estimates`` and ``distributed/rank_plan``.
"""

from __future__ import annotations

import json
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.timing.collectives import Links, seconds_of_message
from torchfake.inspect.timing.commands import LAUNCH, RECORD, SEND, SYNCHRONIZE, Command, Message
from torchfake.inspect.timing.efficiency import LAUNCH_SECONDS, Shares, seconds_of, shares_of
from torchfake.inspect.timing.hardware import Hardware, hardware_of
from torchfake.inspect.timing.trace import trace_of
from torchfake.inspect.timing.work import COMMUNICATION

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False)
class Schedule:
    """When each kernel and each collective of a step runs, in seconds from its beginning."""

    commands: tuple[Command, ...]  # launches and collectives
    begins: Array  # float64 [commands], seconds
    ends: Array  # float64 [commands], seconds
    host_seconds: float  # when the last one was launched
    seconds_by_kind: dict[str, float] = field(default_factory=dict)
    """How long kernels run, by kind; those of several streams may run at the same time."""

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        return max(float(self.ends.max(initial=0.0)), self.host_seconds)

    @cached_property
    def computing_seconds(self) -> float:
        """How long kernels run that are no communication."""
        computes = [command.message is None for command in self.commands]
        return self._covered(np.array(computes, dtype=bool))

    @property
    def exposed_seconds(self) -> float:
        """How long there is communication and nothing is computed."""
        return self._covered(np.ones(len(self.commands), dtype=bool)) - self.computing_seconds

    @property
    def idle_seconds(self) -> float:
        """How long nothing runs: the GPU waits for the host."""
        return self.seconds - self.exposed_seconds - self.computing_seconds

    @cached_property
    def flops(self) -> int:
        """FLOPs of matrix products, convolutions and attention, as torch counts them, recomputation
        included (hardware FLOPs).
        """
        return sum(command.work.flops for command in self.commands if command.work is not None)

    @cached_property
    def model_flops(self) -> int:
        """The same without recomputation (model FLOPs, as in PaLM, Chowdhery et al. 2022)."""
        return sum(
            command.work.flops - command.work.repeated_flops
            for command in self.commands
            if command.work is not None and not command.place.is_recomputation
        )

    def seconds_in(self, phase: str) -> float:
        """From the first to the last command of a phase."""
        mask = np.array([command.place.phase == phase for command in self.commands], dtype=bool)
        return float(self.ends[mask].max() - self.begins[mask].min()) if mask.any() else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Its totals, ready for JSON; `write_trace` has each command."""
        return {
            "seconds": self.seconds,
            "computing_seconds": self.computing_seconds,
            "exposed_seconds": self.exposed_seconds,
            "idle_seconds": self.idle_seconds,
            "seconds_by_kind": self.seconds_by_kind,
            "flops": self.flops,
            "model_flops": self.model_flops,
        }

    def write_trace(self, path: str | Path) -> None:
        """Write a trace in the Trace Event Format, which ui.perfetto.dev opens."""
        Path(path).write_text(json.dumps(trace_of(self.commands, self.begins, self.ends)))

    def _covered(self, mask: Array) -> float:
        """How long at least one of these commands runs."""
        order = np.argsort(self.begins[mask])
        begins, ends = self.begins[mask][order], self.ends[mask][order]
        reached = np.maximum.accumulate(np.concatenate([[0.0], ends]))[:-1]
        return float(np.maximum(ends - np.maximum(begins, reached), 0.0).sum())


PROCESSORS_OF_MESSAGES = 0.20
"""The share of a GPU's processors that a collective occupies: NCCL has up to 32 channels, with a
block of threads each."""

_MESSAGES_UNDER_WAY = 64
"""The most collectives that may overlap with one kernel."""

InNode = Callable[[Message], int]
"""Gives of the ranks of a message's group how many are in one node."""


def schedule_of(
    recorded: Sequence[Command],
    gpu: CudaProfile,
    links: Links | None = None,
    in_node: InNode = lambda message: message.group_size,
    hardware: Hardware | None = None,
    shares: Shares | None = None,
) -> Schedule | None:
    """When each command runs; None if the figures of the GPU are not known.

    Args:
        recorded: in the order of the program.
        gpu: its processors, and its generation.
        links: what connects the ranks; not given: see `Links`.
        in_node: how many ranks of a message's group are in one node; not given: all.
        hardware: the figures of the GPU; not given: those of the datasheet.
        shares: what kernels reach of them; not given: those of the GPU's generation.
    """
    hardware = hardware or hardware_of(gpu)
    if hardware is None:
        return None
    links = links or Links(hardware.link_bytes)
    machine = _Machine(gpu, hardware, links, in_node, shares or shares_of(gpu))
    for command in recorded:
        machine.do(command)
    return machine.schedule()


class _Machine:
    """A host, streams, and links, of which each does one thing at a time."""

    def __init__(
        self, gpu: CudaProfile, hardware: Hardware, links: Links, in_node: InNode, shares: Shares
    ) -> None:
        self._gpu, self._hardware, self._shares = gpu, hardware, shares
        self._links, self._in_node = links, in_node
        self._host = 0.0  # seconds at which it has done what it was given
        self._streams: defaultdict[int, float] = defaultdict(float)  # the same
        self._links_free = [0.0, 0.0]  # the same, of the links in a node and between nodes
        self._messages: list[tuple[float, float]] = []  # when links were used
        self._events: dict[int, float] = {}  # when they happened
        self._ran: list[tuple[Command, float, float]] = []
        self._by_kind: defaultdict[str, float] = defaultdict(float)

    def do(self, command: Command) -> None:
        stream = command.place.stream
        if command.what in (LAUNCH, SEND):
            self._run(command, stream)
        elif command.what == RECORD:
            self._events[command.event] = max(self._host, self._streams[stream])
        elif command.what == SYNCHRONIZE:
            self._host = max(self._host, self._streams[stream])
        else:
            self._streams[stream] = max(self._streams[stream], self._events[command.event])

    def _run(self, command: Command, stream: int) -> None:
        self._host += LAUNCH_SECONDS
        begin = max(self._host, self._streams[stream])
        if command.message is None:
            assert command.work is not None
            kind = command.work.kind
            took = seconds_of(command.work, self._gpu, self._hardware, self._shares)
            took = self._slowed(begin, took)
        else:
            in_node = self._in_node(command.message)
            spans = in_node < command.message.group_size
            kind, begin = COMMUNICATION, max(begin, self._links_free[spans])
            took = seconds_of_message(command.message, in_node, self._links)
            self._links_free[spans] = begin + took
            insort(self._messages, (begin, begin + took))
        self._by_kind[kind] += took
        self._streams[stream] = begin + took
        self._ran.append((command, begin, begin + took))

    def _slowed(self, begin: float, took: float) -> float:
        """How long a kernel takes that begins at `begin`, beside collectives that are under way."""
        at, rest = begin, took
        for first, last in self._messages[-_MESSAGES_UNDER_WAY:]:
            if last <= at:
                continue
            if first >= at + rest:
                break  # and so do all after it
            rest -= max(first - at, 0.0)
            at = max(first, at)
            done = min((last - at) * (1 - PROCESSORS_OF_MESSAGES), rest)
            at, rest = at + done / (1 - PROCESSORS_OF_MESSAGES), rest - done
        return at + rest - begin

    def schedule(self) -> Schedule:
        commands, begins, ends = zip(*self._ran, strict=True) if self._ran else ((), (), ())
        return Schedule(commands, np.array(begins), np.array(ends), self._host, dict(self._by_kind))
