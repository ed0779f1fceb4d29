"""A GPU and its host that run commands: when each begins and ends.

Input: commands in the order of the program, a GPU, links. Output: their times. Invariant: CUDA's
rules: the host launches one command after the other; a command begins when it has been launched,
all before it on its stream have ended, and the events that its stream waits for have happened.
Collectives in a node share its links, and those between nodes the network.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Sequence

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.timing.collectives import Links, seconds_of_message
from torchfake.inspect.timing.commands import (
    EXCHANGE,
    RECORD,
    SYNCHRONIZE,
    WAIT,
    Command,
    Message,
)
from torchfake.inspect.timing.efficiency import LAUNCH_SECONDS, Shares, seconds_of, shares_of
from torchfake.inspect.timing.hardware import Hardware, hardware_of
from torchfake.inspect.timing.meetings import Exchange, Meetings, Pending, time_of
from torchfake.inspect.timing.work import COMMUNICATION

PROCESSORS_OF_MESSAGES = 0.20
"""The share of a GPU's processors that a collective occupies: NCCL has up to 32 channels, with a
block of threads each."""

_MESSAGES_UNDER_WAY = 64
"""The most collectives that may overlap with one kernel."""

InNode = Callable[[Message], int]
"""Gives of the ranks of a message's group how many are in one node."""


def machine_of(
    gpu: CudaProfile,
    links: Links | None,
    in_node: InNode,
    hardware: Hardware | None = None,
    shares: Shares | None = None,
    meetings: Meetings | None = None,
) -> Machine | None:
    """A machine that has done nothing; None if the figures of the GPU are not known.

    Args: see :func:`torchfake.inspect.timing.schedule.schedule_of`.
        meetings: with the ranks at the other ends of messages; not given: they are always ready.
    """
    hardware = hardware or hardware_of(gpu)
    if hardware is None:
        return None
    links = links or Links(hardware.link_bytes)
    return Machine(gpu, hardware, links, in_node, shares or shares_of(gpu), meetings)


class Machine:
    """A host, streams, and links, of which each does one thing at a time."""

    def __init__(
        self,
        gpu: CudaProfile,
        hardware: Hardware,
        links: Links,
        in_node: InNode,
        shares: Shares,
        meetings: Meetings | None,
    ) -> None:
        self._gpu, self._hardware, self._shares = gpu, hardware, shares
        self._links, self._in_node = links, in_node
        self._meetings = meetings
        self.host = 0.0  # seconds at which it has done what it was given
        self._streams: defaultdict[int, Pending] = defaultdict(float)  # the same
        self._links_free = [0.0, 0.0]  # the same, of the links in a node and between nodes
        self._messages: list[tuple[float, float]] = []  # when links were used
        self._events: dict[int, Pending] = {}  # when they happened
        self._num_done = 0  # commands
        self._exchanges: list[Exchange] = []  # that have not ended
        self._not_before: defaultdict[int, float] = defaultdict(float)  # of streams that wait
        self.ran: list[tuple[Command, float, float]] = []
        self.waits: list[tuple[float, float]] = []  # for ranks at other ends of messages
        self.seconds_by_kind: defaultdict[str, float] = defaultdict(float)

    def run(self, commands: Sequence[Command]) -> bool:
        """Run on, until a command waits for a rank that has not got there; whether anything was
        done. Called again, it goes on where it was.
        """
        before, has_advanced = self._num_done, self._advance()
        while self._num_done < len(commands) and self._do(commands[self._num_done]):
            self._num_done += 1
        return self._advance() or has_advanced or self._num_done > before

    def is_done(self, commands: Sequence[Command]) -> bool:
        """Whether all of these have been run, and have ended."""
        return self._num_done == len(commands) and not self._exchanges

    def unmet(self) -> Message | None:
        """A message whose other end is not there."""
        return next((found for each in self._exchanges if (found := each.unmet())), None)

    def _do(self, command: Command) -> bool:
        """Run a command; False if that has to wait for another rank."""
        stream = command.place.stream
        there = self._streams[stream]
        before = time_of(there)
        if command.what == RECORD:
            self._events[command.event] = there if before is None else max(self.host, before)
        elif command.what == EXCHANGE:
            self._exchange(command, stream)
        elif command.what == WAIT:
            happened = time_of(self._events[command.event])
            if happened is None:
                return self._advance() and self._do(command)
            if before is None:  # an exchange is under way, and the next begins later
                self._not_before[stream] = max(self._not_before[stream], happened)
            else:
                self._streams[stream] = max(before, happened)
        elif before is None:
            return self._advance() and self._do(command)
        elif command.what == SYNCHRONIZE:
            self.host = max(self.host, before)
        else:
            self._launch(command, stream, before)
        return True

    def _exchange(self, command: Command, stream: int) -> None:
        """Messages to and from single ranks: they end when those have begun theirs, too."""
        self.host += LAUNCH_SECONDS
        seconds = [
            seconds_of_message(message, self._in_node(message), self._links)
            for message in command.exchanged
        ]
        not_before = max(self.host, self._not_before.pop(stream, 0.0))
        previous = self._streams[stream]
        exchange = Exchange(command, not_before, previous, seconds, self._meetings)
        self._exchanges.append(exchange)
        self._streams[stream] = exchange
        self._advance()

    def _advance(self) -> bool:
        """Begin and end the exchanges whose other ranks have come; whether there were any."""
        has_advanced = False
        for each in [*self._exchanges]:
            has_advanced |= each.advance()
            if each.begin is not None and each.met is not None and each.end is not None:
                self._exchanges.remove(each)
                self.seconds_by_kind[COMMUNICATION] += each.end - each.met
                self.waits.append((each.begin, each.met))
                self.ran.append((each.command, each.begin, each.end))
        return has_advanced

    def _launch(self, command: Command, stream: int, before: float) -> None:
        self.host += LAUNCH_SECONDS
        begin = max(self.host, before)
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
        self.seconds_by_kind[kind] += took
        self._streams[stream] = begin + took
        self.ran.append((command, begin, begin + took))

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
