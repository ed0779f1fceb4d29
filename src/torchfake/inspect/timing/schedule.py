"""The beginning and the end of each command, and what a step waits for.

Input: commands in the order of the program, a GPU, links. Output: a :class:`Schedule`. Invariant:
the times are those of :class:`Machine`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.timing.collectives import Links
from torchfake.inspect.timing.commands import Command
from torchfake.inspect.timing.efficiency import Shares
from torchfake.inspect.timing.hardware import Hardware
from torchfake.inspect.timing.machine import InNode, Machine, machine_of
from torchfake.inspect.timing.trace import trace_of

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
    waits: Array = field(default_factory=lambda: np.zeros((0, 2)))
    """From when to when messages waited for the rank at their other end, float64 [waits, 2]."""
    last_seconds: float = 0.0
    """When the last is done of the ranks that wait for each other."""

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
        """How long kernels run that are no communication."""
        return _covered(self.begins[self._computes], self.ends[self._computes])

    @cached_property
    def _busy_or_waiting(self) -> float:
        begins = np.concatenate([self.begins[self._computes], self.waits[:, 0]])
        return _covered(begins, np.concatenate([self.ends[self._computes], self.waits[:, 1]]))

    @property
    def exposed_seconds(self) -> float:
        """How long messages are under way and nothing is computed."""
        return _covered(self.begins, self.ends) - self._busy_or_waiting

    @property
    def bubble_seconds(self) -> float:
        """How long nothing is computed because other ranks have not got to that yet: the bubble of
        a pipeline. What is left when this rank is done and others are not is part of it.
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
            "bubble_seconds": self.bubble_seconds,
            "seconds_by_kind": self.seconds_by_kind,
            "flops": self.flops,
            "model_flops": self.model_flops,
        }

    def write_trace(self, path: str | Path) -> None:
        """Write a trace in the Trace Event Format, which ui.perfetto.dev opens."""
        Path(path).write_text(json.dumps(trace_of(self.commands, self.begins, self.ends)))


def _covered(begins: Array, ends: Array) -> float:
    """How long at least one of these runs."""
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
        recorded: in the order of the program.
        gpu: its processors, and its generation.
        links: what connects the ranks; not given: see `Links`.
        in_node: how many ranks of a message's group are in one node; not given: all.
        hardware: the figures of the GPU; not given: those of the datasheet.
        shares: what kernels reach of them; not given: those of the GPU's generation.
    """
    machine = machine_of(gpu, links, in_node, hardware, shares)
    if machine is None:
        return None
    machine.run(recorded)
    return of_machine(machine)


def of_machine(machine: Machine, last_seconds: float = 0.0) -> Schedule:
    """The schedule of what a machine has run."""
    commands, begins, ends = zip(*machine.ran, strict=True) if machine.ran else ((), (), ())
    return Schedule(
        commands,
        np.array(begins, dtype=np.float64),
        np.array(ends, dtype=np.float64),
        machine.host,
        dict(machine.seconds_by_kind),
        np.array(machine.waits, dtype=np.float64).reshape(-1, 2),
        last_seconds,
    )
