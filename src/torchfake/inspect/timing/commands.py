"""What a program puts on streams, in order.

Input: operators as they are run on fakes, messages, and the events that streams record and wait
for. Output: a list of :class:`Command`. Invariant: the order is that of the program; nothing has a
time yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchfake.inspect.timing.work import Work, launches_nothing, work_of
from torchfake.observe import FakeTensor, metadata_of

LAUNCH, SEND, RECORD, WAIT, SYNCHRONIZE, EXCHANGE = range(6)
"""What a command is."""


class Place(NamedTuple):
    """Where a command comes from, and where it goes."""

    stream: int
    phase: str = ""
    module: str = ""
    is_recomputation: bool = False


class Message(NamedTuple):
    """The message of a collective, or of one rank to another."""

    collective: str
    num_bytes: int  # the payload
    axis: str  # of the mesh
    group_size: int  # ranks
    ends: tuple[int, int] | None = None  # of one rank to another: who sends, and who receives
    tag: int = 0


class Command(NamedTuple):
    """One thing that the program asks of the GPU, or of a stream."""

    what: int
    place: Place
    name: str = ""  # of the operator or the collective
    work: Work | None = None  # of a launch
    message: Message | None = None  # of a collective
    event: int = 0  # that is recorded, or waited for
    exchanged: tuple[Message, ...] = ()  # by an exchange: messages that begin together


_OF_THE_FIRST_STEP = frozenset({"aten::zeros_like", "aten::lift_fresh"})
"""What an optimizer does to make its state. The steps after it are timed."""


class CommandRecorder:
    """Records the commands of one step of one rank."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self._works: dict[Any, Work | None] = {}
        self._launches: dict[Any, bool] = {}  # by operator: whether there is a kernel at all
        self._events: dict[int, tuple[int, Any]] = {}  # numbers and events, by their identity
        self._num_events = 0

    def launch(
        self, func: Any, args: Any, kwargs: Any, result: Any, place_of: Callable[[], Place]
    ) -> None:
        """An operator was run."""
        if func not in self._launches:
            self._launches[func] = not launches_nothing(func)
        if not self._launches[func]:
            return
        name = func._schema.name
        place = place_of()
        if place.phase == "optimizer" and name in _OF_THE_FIRST_STEP:
            return
        work = self._work(func, args, kwargs, result)
        if work is not None:
            self.commands.append(Command(LAUNCH, place, name, work))
        elif name == "aten::_local_scalar_dense" and args[0].device.type == "cuda":
            self.commands.append(Command(SYNCHRONIZE, place, name))

    def _work(self, func: Any, args: Any, kwargs: Any, result: Any) -> Work | None:
        key = func, _key(args), _key(tuple(kwargs.items()))
        try:
            return self._works[key]
        except TypeError:  # an argument without a hash
            return work_of(func, args, kwargs, result)
        except KeyError:
            work = self._works[key] = work_of(func, args, kwargs, result)
            return work

    def send(self, message: Message, place: Place) -> None:
        """A collective was called."""
        self.commands.append(Command(SEND, place, message.collective, message=message))

    def exchange(self, messages: list[Message], stream: int, place: Place) -> int:
        """Messages to and from single ranks, on a stream of their own, after what has been put on
        the stream of `place`; the event that ends them.
        """
        wait = Command(WAIT, Place(stream), event=self._record_new(place.stream))
        names = sorted({message.collective for message in messages})
        whole = messages[0]._replace(num_bytes=sum(message.num_bytes for message in messages))
        place = place._replace(stream=stream)
        name = " and ".join(names)
        self.commands += [wait, Command(EXCHANGE, place, name, None, whole, 0, tuple(messages))]
        return self._record_new(stream)

    def wait_for(self, event: int, stream: int) -> None:
        """A stream waits for an event that this has numbered."""
        self.commands.append(Command(WAIT, Place(stream), event=event))

    def record(self, event: Any, stream: int) -> None:
        """A stream records an event of the program."""
        self._events[id(event)] = self._record_new(stream), event

    def wait(self, stream: int, event: Any) -> None:
        """A stream waits for an event of the program, if that has been recorded."""
        if id(event) in self._events:
            self.wait_for(self._events[id(event)][0], stream)

    def _record_new(self, stream: int) -> int:
        number, self._num_events = self._num_events, self._num_events + 1
        self.commands.append(Command(RECORD, Place(stream), event=number))
        return number


def recorder_for(device: torch.device) -> CommandRecorder | None:
    """A new recorder for a GPU; None for what has no streams."""
    return CommandRecorder() if device.type == "cuda" else None


def _key(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return metadata_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return type(value), value
