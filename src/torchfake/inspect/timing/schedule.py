"""The beginning and the end of each command, and what a step waits for.

Input: commands in the order of the program, a GPU, links. Output: a :class:`Schedule`. Invariant:
the times are those that :class:`Machine` simulates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.arithmetic.uncounted import Uncounted, uncounted_to_dict, untimed_to_dict
from torchfake.inspect.timing.collectives import Links
from torchfake.inspect.timing.commands import (
    END_OF_PASS,
    Command,
    on_cpu_commands,
    uncounted_commands,
)
from torchfake.inspect.timing.efficiency import Shares
from torchfake.inspect.timing.hardware import Hardware
from torchfake.inspect.timing.machine import InNode, Machine, machine_of
from torchfake.inspect.timing.trace import trace_of

Array = np.ndarray[Any, Any]

_CPU_BYTES = 25e9
"""Bytes per second at which a CPU gets through its memory, or through a PCIe link, at most roughly:
only to tell whether that may be left out."""

_NEGLIGIBLE = 0.01  # of a step

_BOUND_BY_HOST = 0.9
"""The share of a step in which the host launches, from which on launches bound its time."""


@dataclass(frozen=True, repr=False)
class Schedule:
    """When each kernel and each collective of a step runs, in seconds from its beginning."""

    commands: tuple[Command, ...]  # launches and collectives
    begins: Array  # float64 [commands], seconds
    ends: Array  # float64 [commands], seconds
    host_seconds: float  # when the host has launched the last command
    seconds_by_kind: dict[str, float] = field(default_factory=dict)
    """How long kernels run, by kind; kernels on different streams may run at the same time."""
    waits: Array = field(default_factory=lambda: np.zeros((0, 2)))
    """Begin and end of each wait of a message for the other rank, float64 [waits, 2]."""
    last_seconds: float = 0.0
    """When the last rank is done, if several ranks wait for each other."""
    on_cpu: tuple[Uncounted, ...] = ()
    """What reads and writes CPU memory, such as an optimizer of offloaded parameters: not timed."""

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        return max(self._own_seconds, self.last_seconds)

    @property
    def _own_seconds(self) -> float:
        return max(float(self.ends.max(initial=0.0)), self.host_seconds)

    @cached_property
    def _computes(self) -> Array:
        return np.array([command.message is None for command in self.commands], dtype=bool)

    @cached_property
    def computing_seconds(self) -> float:
        """How long at least one kernel runs, without communication."""
        return _covered(self.begins[self._computes], self.ends[self._computes])

    @cached_property
    def _busy_or_waiting(self) -> float:
        begins = np.concatenate([self.begins[self._computes], self.waits[:, 0]])
        return _covered(begins, np.concatenate([self.ends[self._computes], self.waits[:, 1]]))

    @property
    def exposed_seconds(self) -> float:
        """How long messages are being sent while nothing is computed."""
        return _covered(self.begins, self.ends) - self._busy_or_waiting

    @property
    def bubble_seconds(self) -> float:
        """How long this rank computes nothing because it waits for other ranks: the bubble of a
        pipeline. The time from its own end to the end of the last rank is included.
        """
        waiting = self._busy_or_waiting - self.computing_seconds
        return waiting + self.seconds - self._own_seconds

    @property
    def idle_seconds(self) -> float:
        """How long nothing runs: the GPU waits for the host."""
        used = self.exposed_seconds + self.computing_seconds + self.bubble_seconds
        return max(self.seconds - used, 0.0)

    @cached_property
    def flops(self) -> int:
        """FLOPs of operators with a formula, recomputation included (hardware FLOPs); `uncounted`
        are the operators whose FLOPs are not known.
        """
        return sum(command.work.flops for command in self.commands if command.work is not None)

    @cached_property
    def model_flops(self) -> int:
        """`flops` without recomputation (model FLOPs, as in PaLM, Chowdhery et al. 2022)."""
        return sum(
            command.work.flops - command.work.repeated_flops
            for command in self.commands
            if command.work is not None and not command.place.is_recomputation
        )

    @cached_property
    def uncounted(self) -> tuple[Uncounted, ...]:
        """The operators whose FLOPs are not known: their time is that of the bytes they move."""
        return uncounted_commands(self.commands)

    @property
    def untimed(self) -> tuple[Uncounted, ...]:
        """`on_cpu`, if it takes more than a negligible share of the step."""
        num_bytes = sum(found.num_bytes for found in self.on_cpu)
        return self.on_cpu if num_bytes > _NEGLIGIBLE * _CPU_BYTES * self.seconds else ()

    @property
    def is_lower_bound(self) -> bool:
        """Whether a step takes longer than `seconds`: by what the CPU computes or copies, or what
        operators compute whose FLOPs are not known.
        """
        return bool(self.untimed or self.uncounted)

    @property
    def times_as_much(self) -> int:
        """How many times as much work would take about as long, because the GPU mostly waits for
        the host to launch kernels; 1 if that does not bound the time.
        """
        is_bound = self.host_seconds >= _BOUND_BY_HOST * self.seconds and self.computing_seconds > 0
        return max(int(self.host_seconds / self.computing_seconds), 1) if is_bound else 1

    @property
    def is_bound_by_launches(self) -> bool:
        """Whether twice the work would take about as long."""
        return self.times_as_much >= 2

    def seconds_in(self, phase: str) -> float:
        """Seconds from the beginning of a phase's first command to the end of its last."""
        mask = np.array([command.place.phase == phase for command in self.commands], dtype=bool)
        return float(self.ends[mask].max() - self.begins[mask].min()) if mask.any() else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The totals, as a dict for JSON; :meth:`write_trace` writes each command."""
        return {
            "seconds": self.seconds,
            "host_seconds": self.host_seconds,
            "is_lower_bound": self.is_lower_bound,
            "computing_seconds": self.computing_seconds,
            "exposed_seconds": self.exposed_seconds,
            "idle_seconds": self.idle_seconds,
            "bubble_seconds": self.bubble_seconds,
            "seconds_by_kind": self.seconds_by_kind,
            "flops": self.flops,
            "model_flops": self.model_flops,
            **uncounted_to_dict(self.uncounted),
            **untimed_to_dict(self.untimed),
        }

    def write_trace(self, path: str | Path) -> None:
        """Write a trace in the Trace Event Format, which ui.perfetto.dev opens."""
        Path(path).write_text(json.dumps(trace_of(self.commands, self.begins, self.ends)))


def _covered(begins: Array, ends: Array) -> float:
    """How long at least one of the intervals from `begins` to `ends` lasts (their union)."""
    order = np.argsort(begins)
    begins, ends = begins[order], ends[order]
    reached = np.maximum.accumulate(np.concatenate([[0.0], ends]))[:-1]
    return float(np.maximum(ends - np.maximum(begins, reached), 0.0).sum())


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
        recorded: the commands in the order of the program.
        gpu: the profile of the GPU.
        links: the links between ranks; by default the GPU's own, and the network of `Links`.
        in_node: gives how many ranks of a message's group are in one node; by default all.
        hardware: the figures of the GPU; by default those of its datasheet.
        shares: the shares of the figures that kernels reach; by default those of its generation.
    """
    machine = machine_of(gpu, links, in_node, hardware, shares)
    if machine is None:
        return None
    machine.run(recorded)
    return of_machine(machine)


def of_machine(machine: Machine, last_seconds: float = 0.0) -> Schedule:
    """The schedule of the commands that a machine has run."""
    commands, begins, ends = zip(*machine.ran, strict=True) if machine.ran else ((), (), ())
    return Schedule(
        commands,
        np.array(begins, dtype=np.float64),
        np.array(ends, dtype=np.float64),
        machine.host,
        dict(machine.seconds_by_kind),
        np.array(machine.waits, dtype=np.float64).reshape(-1, 2),
        last_seconds,
        on_cpu_commands(machine.on_host),
    )


class GenerationTime(NamedTuple):
    """The time of generation; between the first and the last token, times are on a line."""

    prompt_seconds: float  # the pass that gives the first new token
    first_seconds: float  # the pass that gives the second
    last_seconds: float
    num_passes: int  # after that over the prompt

    @property
    def seconds_per_token(self) -> float:
        """The mean of all passes after that over the prompt."""
        return (self.first_seconds + self.last_seconds) / 2

    @property
    def seconds(self) -> float:
        """The time of all passes."""
        return self.prompt_seconds + self.num_passes * self.seconds_per_token

    def to_dict(self) -> dict[str, float]:
        """The times as a dict for JSON."""
        each = {"seconds": self.seconds, "seconds_per_token": self.seconds_per_token}
        return {**each, "prompt_seconds": self.prompt_seconds}


def generation_time(
    recorded: Sequence[Command], gpu: CudaProfile, new_tokens: int
) -> GenerationTime | None:
    """The time of generation, of which the pass over the prompt and the first and the last pass
    over a token were recorded; None if that is not known.

    Args:
        recorded: the commands, each pass with its end.
        gpu: the profile of the GPU.
        new_tokens: the tokens that are generated.
    """
    passes: list[list[Command]] = [[]]
    for command in recorded:
        passes[-1].append(command)
        if command.name == END_OF_PASS:
            passes.append([])
    each = [schedule_of(commands, gpu) for commands in passes[:-1]]
    known = [found.seconds for found in each if found is not None and not found.is_lower_bound]
    if not known or len(known) < len(each):
        return None
    prompt, *tokens = known
    first, last = (tokens[0], tokens[-1]) if tokens else (0.0, 0.0)
    return GenerationTime(prompt, first, last, new_tokens - 1)
