"""The commands that a program puts on streams, in order.

Input: operators as they are run on fakes, messages, and the events that streams record and wait
for. Output: a list of :class:`Command`. Invariant: the order is that of the program; commands have
no times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from torchfake.inspect.arithmetic.formulas import has_formula, reads_values
from torchfake.inspect.arithmetic.kinds import UNCOUNTED
from torchfake.inspect.arithmetic.moved_bytes import launches_nothing
from torchfake.inspect.arithmetic.uncounted import Uncounted, uncounted_of
from torchfake.inspect.timing.work import ON_CPU, Work, cpu_bytes_of, work_of
from torchfake.observe import FakeTensor, RunningModules, metadata_of, traits_of

LAUNCH, SEND, RECORD, WAIT, SYNCHRONIZE, EXCHANGE, ON_HOST = range(7)
"""The kinds of commands; what is done on the host is none to the GPU, and takes a time that is not
known."""


class Place(NamedTuple):
    """The stream of a command, and the phase and module that issued the command."""

    stream: int
    phase: str = ""
    module: str = ""
    is_recomputation: bool = False


class Message(NamedTuple):
    """The message of a collective, or from one rank to another."""

    collective: str
    num_bytes: int  # the payload
    axis: str  # of the mesh
    group_size: int  # ranks
    ends: tuple[int, int] | None = None  # sender and receiver, if from one rank to another
    tag: int = 0


class Command(NamedTuple):
    """One command of the program to the GPU, or to a stream."""

    what: int  # LAUNCH, SEND, ...
    place: Place
    name: str = ""  # of the operator or the collective
    work: Work | None = None  # of a launch, or of what is done on the host
    message: Message | None = None  # of a collective
    event: int = 0  # the event that is recorded, or waited for
    exchanged: tuple[Message, ...] = ()  # of an exchange: the messages, which begin together
    others: int = 0  # operators since the last launch that launched nothing, such as views
    modules: int = 0  # modules that were entered since the last launch


END_OF_PASS = "end of a pass"
"""The name of the command that ends a pass of generation."""

_FEW_BYTES = 4096
"""Bytes of CPU memory, such as those of a step counter, that take no time."""

_OF_THE_FIRST_STEP = frozenset({"aten::zeros_like", "aten::lift_fresh"})
"""Operators with which an optimizer creates its state: only later steps are timed."""


class CommandRecorder:
    """Records the commands of one step of one rank."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.running: RunningModules | None = None  # counts the modules that are entered
        self._num_entered = 0  # at the last launch
        self._num_others = 0  # operators since then that launched nothing
        self._works: dict[Any, tuple[Work | None, int]] = {}  # with the bytes of CPU memory
        self._launches: dict[Any, bool] = {}  # by operator: whether it launches a kernel
        self._events: dict[int, tuple[int, Any]] = {}  # number and event, by the event's id
        self._num_events = 0

    def launch(
        self, func: Any, args: Any, kwargs: Any, result: Any, place_of: Callable[[], Place]
    ) -> None:
        """Record the launch of an operator that was run."""
        if func not in self._launches:
            self._launches[func] = has_formula(func) or not launches_nothing(func)
        if not self._launches[func]:
            self._num_others += 1
            return
        name = traits_of(func).packet
        place = place_of()
        if place.phase == "optimizer" and name in _OF_THE_FIRST_STEP:
            return
        work, cpu_bytes = self._work(func, args, kwargs, result)
        if cpu_bytes > _FEW_BYTES:
            on_cpu = Work(ON_CPU, 0, cpu_bytes, torch.uint8)
            self.commands.append(Command(ON_HOST, place, name, on_cpu))
        if work is not None:
            others, modules = self._since_last_launch()
            self.commands.append(Command(LAUNCH, place, name, work, others=others, modules=modules))
        elif name == "aten::_local_scalar_dense" and args[0].device.type == "cuda":
            self.commands.append(Command(SYNCHRONIZE, place, name))

    def resume(self) -> None:
        """What the program has done since the last command is not part of the step."""
        self._since_last_launch()

    def _since_last_launch(self) -> tuple[int, int]:
        """The operators that launched nothing, and the modules that were entered."""
        entered = 0 if self.running is None else self.running.num_entered
        since = self._num_others, entered - self._num_entered
        self._num_others, self._num_entered = 0, entered
        return since

    def end_pass(self, place: Place) -> None:
        """Record that the host waits for the result of a pass, as generation does for a token."""
        self.commands.append(Command(SYNCHRONIZE, place, END_OF_PASS))

    def _work(self, func: Any, args: Any, kwargs: Any, result: Any) -> tuple[Work | None, int]:
        """The work on the GPU, and the bytes of CPU memory that are read and written."""
        call = func, args, kwargs, result
        if reads_values(func):
            return work_of(*call), cpu_bytes_of(*call)
        key = func, _key(args), _key(tuple(kwargs.items()))
        try:
            return self._works[key]
        except TypeError:  # an argument is not hashable
            return work_of(*call), cpu_bytes_of(*call)
        except KeyError:
            found = self._works[key] = work_of(*call), cpu_bytes_of(*call)
            return found

    def send(self, message: Message, place: Place) -> None:
        """Record the call of a collective."""
        self.commands.append(Command(SEND, place, message.collective, message=message))

    def exchange(self, messages: list[Message], stream: int, place: Place) -> int:
        """Record messages to and from single ranks, on their own `stream`, which waits for the
        commands on the stream of `place`. Returns the event that ends the messages.
        """
        wait = Command(WAIT, Place(stream), event=self._record_new(place.stream))
        names = sorted({message.collective for message in messages})
        whole = messages[0]._replace(num_bytes=sum(message.num_bytes for message in messages))
        place = place._replace(stream=stream)
        name = " and ".join(names)
        self.commands += [wait, Command(EXCHANGE, place, name, None, whole, 0, tuple(messages))]
        return self._record_new(stream)

    def wait_for(self, event: int, stream: int) -> None:
        """Record that a stream waits for an event, by the number that this recorder gave it."""
        self.commands.append(Command(WAIT, Place(stream), event=event))

    def record(self, event: Any, stream: int) -> None:
        """Record that a stream records an event of the program."""
        self._events[id(event)] = self._record_new(stream), event

    def wait(self, stream: int, event: Any) -> None:
        """Record that a stream waits for an event of the program, if the event was recorded."""
        if id(event) in self._events:
            self.wait_for(self._events[id(event)][0], stream)

    def _record_new(self, stream: int) -> int:
        number, self._num_events = self._num_events, self._num_events + 1
        self.commands.append(Command(RECORD, Place(stream), event=number))
        return number


def uncounted_commands(commands: Iterable[Command]) -> tuple[Uncounted, ...]:
    """The operators among some commands whose FLOPs are not known."""
    return uncounted_of(
        (command.name, command.work.num_bytes)
        for command in commands
        if command.work is not None and command.work.kind == UNCOUNTED
    )


def on_cpu_commands(commands: Iterable[Command]) -> tuple[Uncounted, ...]:
    """The operators among some commands that read or write CPU memory, with their bytes there."""
    return uncounted_of(
        (command.name, command.work.num_bytes)
        for command in commands
        if command.what == ON_HOST and command.work is not None
    )


def recorder_for(device: torch.device) -> CommandRecorder | None:
    """A new recorder for a GPU; None for a device without streams."""
    return CommandRecorder() if device.type == "cuda" else None


def _key(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return metadata_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return type(value), value
