"""Simulates a GPU and its host that run commands: when each command begins and ends.

Input: commands in the order of the program, a GPU, links. Output: the commands' times. Invariant:
CUDA's rules: the host launches one command after the other; a command begins when the host has
launched it, all earlier commands on its stream have ended, and the events that its stream waits for
have happened. Collectives in a node share the node's links, others the network between nodes.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Sequence

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.arithmetic.kinds import COMMUNICATION
from torchfake.inspect.timing.collectives import Links, seconds_of_message
from torchfake.inspect.timing.commands import (
    EXCHANGE,
    ON_HOST,
    RECORD,
    SYNCHRONIZE,
    WAIT,
    Command,
    Message,
)
from torchfake.inspect.timing.efficiency import (
    ENGINE_SHARE,
    LAUNCH_SECONDS,
    MODULE_SECONDS,
    OTHER_SECONDS,
    Shares,
    seconds_of,
    shares_of,
)
from torchfake.inspect.timing.hardware import Hardware, hardware_of
from torchfake.inspect.timing.meetings import Exchange, Meetings, Pending, time_of

PROCESSORS_OF_MESSAGES = 0.20
"""The share of a GPU's processors that a collective occupies: NCCL uses up to 32 channels, each
with one thread block."""

_MESSAGES_UNDER_WAY = 64
"""The most collectives that may overlap with one kernel."""

InNode = Callable[[Message], int]
"""Gives the number of ranks of a message's group that are in one node."""


def machine_of(
    gpu: CudaProfile,
    links: Links | None,
    in_node: InNode,
    hardware: Hardware | None = None,
    shares: Shares | None = None,
    meetings: Meetings | None = None,
) -> Machine | None:
    """A machine that has run no command; None if the figures of the GPU are not known.

    Args: see :func:`torchfake.inspect.timing.schedule.schedule_of`.
        meetings: with the ranks at the other ends of messages; by default these are always ready.
    """
    hardware = hardware or hardware_of(gpu)
    if hardware is None:
        return None
    links = links or Links(hardware.link_bytes)
    return Machine(gpu, hardware, links, in_node, shares or shares_of(gpu), meetings)


class Machine:
    """A host, streams and links, each of which does one thing at a time."""

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
        self.host = 0.0  # the time at which the host is idle again
        self._streams: defaultdict[int, Pending] = defaultdict(float)  # when each is idle again
        self._links_free = [0.0, 0.0]  # when the links in a node, and between nodes, are idle again
        self._messages: list[tuple[float, float]] = []  # begin and end of each collective
        self._events: dict[int, Pending] = {}  # when each event happens
        self._num_done = 0  # commands that have run
        self._exchanges: list[Exchange] = []  # exchanges that have not ended
        self._not_before: defaultdict[int, float] = defaultdict(float)  # for the next exchanges
        self.ran: list[tuple[Command, float, float]] = []  # commands, their begin and end
        self.on_host: list[Command] = []  # what the host does, which is not timed
        self.waits: list[tuple[float, float]] = []  # spans of waiting for other ranks
        self.seconds_by_kind: defaultdict[str, float] = defaultdict(float)

    def run(self, commands: Sequence[Command]) -> bool:
        """Run further commands, until one waits for another rank that has not reached the message.
        The next call continues there. Returns whether there was any progress.
        """
        before, has_advanced = self._num_done, self._advance()
        while self._num_done < len(commands) and self._do(commands[self._num_done]):
            self._num_done += 1
        return self._advance() or has_advanced or self._num_done > before

    def is_done(self, commands: Sequence[Command]) -> bool:
        """Whether all commands have been run, and have ended."""
        return self._num_done == len(commands) and not self._exchanges

    def unmet(self) -> Message | None:
        """A message that another rank has not reached; None if there is none."""
        return next((found for each in self._exchanges if (found := each.unmet())), None)

    def _do(self, command: Command) -> bool:
        """Run a command; False if the command has to wait for another rank."""
        stream = command.place.stream
        there = self._streams[stream]
        before = time_of(there)
        if command.what == ON_HOST:
            self.on_host.append(command)
        elif command.what == RECORD:
            self._events[command.event] = there if before is None else max(self.host, before)
        elif command.what == EXCHANGE:
            self._exchange(command, stream)
        elif command.what == WAIT:
            happened = time_of(self._events[command.event])
            if happened is None:
                return self._advance() and self._do(command)
            if before is None:  # the stream's exchange has no end yet: the wait delays the next one
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
        """Run messages to and from single ranks, which end after those ranks have begun theirs."""
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
        """Begin and end the exchanges that other ranks have reached; whether there was progress."""
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
        self.host += host_seconds_of(command)
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
        """How long a kernel takes beside running collectives, if it takes `took` alone."""
        at, rest = begin, took
        for first, last in self._messages[-_MESSAGES_UNDER_WAY:]:
            if last <= at:
                continue
            if first >= at + rest:
                break  # all later collectives begin after the kernel ends
            rest -= max(first - at, 0.0)
            at = max(first, at)
            done = min((last - at) * (1 - PROCESSORS_OF_MESSAGES), rest)
            at, rest = at + done / (1 - PROCESSORS_OF_MESSAGES), rest - done
        return at + rest - begin


def host_seconds_of(command: Command) -> float:
    """How long the host takes to reach a launch from the last one, and to launch."""
    seconds = LAUNCH_SECONDS + command.others * OTHER_SECONDS + command.modules * MODULE_SECONDS
    place = command.place
    is_of_engine = place.phase == "backward" and not place.is_recomputation
    return seconds * ENGINE_SHARE if is_of_engine else seconds
