"""Messages between two ranks, which begin when both ranks have reached them.

Input: when ranks begin to send and to receive. Output: when their exchanges end. Invariant: the
messages from one rank to another are received in the order in which they are sent; as with NCCL,
neither rank continues before both have begun and the whole message has been sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torchfake.inspect.timing.commands import Command, Message

Key = tuple[int, int, int, int]
"""Identifies a message: sender, receiver, tag, and the number of such messages before it."""


class Meetings:
    """The meetings of one rank with other ranks.

    Args:
        begun: when each end of a message begins, by key and whether it is the sender's end; shared
            by the meetings of all ranks.
        rank: the rank.
        run_for: gives the rank that is simulated in place of a rank; None: always ready.
    """

    def __init__(
        self,
        begun: dict[tuple[Key, bool], float],
        rank: int,
        run_for: Callable[[int], int | None],
    ) -> None:
        self._begun, self._rank, self._run_for = begun, rank, run_for
        self._numbers: defaultdict[Any, int] = defaultdict(int)

    def key_of(self, message: Message) -> tuple[Key, bool] | None:
        """The end of a message at this rank; None if the other rank is always ready."""
        assert message.ends is not None
        is_sent = message.collective == "send"
        other = self._run_for(message.ends[is_sent])
        if other is None or other == self._rank:
            return None
        channel = (*((self._rank, other) if is_sent else (other, self._rank)), message.tag)
        number = self._numbers[channel, is_sent]
        self._numbers[channel, is_sent] += 1
        return (*channel, number), is_sent

    def begin(self, end: tuple[Key, bool], seconds: float) -> None:
        """Note that this rank has reached its end of a message."""
        self._begun[end] = seconds

    def time_of_other(self, end: tuple[Key, bool]) -> float | None:
        """When the other rank has reached its end of the message; None if it has not."""
        key, is_sent = end
        return self._begun.get((key, not is_sent))


class Exchange:
    """Messages that begin together.

    Args:
        command: the command of the exchange.
        not_before: when the host has launched it, and the events that its stream waits for happen.
        previous: when the previous command on its stream ends.
        seconds: the duration of each message.
        meetings: the meetings with other ranks; None: these are always ready.
    """

    def __init__(
        self,
        command: Command,
        not_before: float,
        previous: Pending,
        seconds: Sequence[float],
        meetings: Meetings | None,
    ) -> None:
        self.command, self._not_before, self._previous = command, not_before, previous
        self._seconds, self._meetings = seconds, meetings
        messages = command.exchanged
        self._ends = [None if meetings is None else meetings.key_of(each) for each in messages]
        self.begin: float | None = None
        self.met: float | None = None  # when all other ranks have reached their ends
        self.end: float | None = None

    def advance(self) -> bool:
        """Begin, and end, as far as possible; whether there was progress."""
        before = self.begin, self.end
        if self.begin is None:
            self._begin()
        if self.begin is not None and self.end is None:
            self._end(self.begin)
        return (self.begin, self.end) != before

    def unmet(self) -> Message | None:
        """The first message that the other rank has not reached; None if there is none."""
        if self.begin is None:
            return None
        times = zip(self.command.exchanged, self._times(self.begin), strict=True)
        return next((message for message, time in times if time is None), None)

    def _begin(self) -> None:
        previous = time_of(self._previous)
        if previous is None:
            return
        self.begin = max(self._not_before, previous)
        for end in self._ends:
            if self._meetings is not None and end is not None:
                self._meetings.begin(end, self.begin)

    def _end(self, begin: float) -> None:
        times = [time for time in self._times(begin) if time is not None]
        if len(times) < len(self._ends):
            return
        self.met = max(begin, *times)
        pairs = zip(times, self._seconds, strict=True)
        self.end = max(max(begin, time) + seconds for time, seconds in pairs)

    def _times(self, begin: float) -> list[float | None]:
        """When the other rank reaches each message; `begin`, if that rank is always ready."""
        meet = self._meetings
        return [
            begin if end is None or meet is None else meet.time_of_other(end) for end in self._ends
        ]


Pending = float | Exchange
"""When something is done: after so many seconds, or when an exchange ends."""


def time_of(value: Pending) -> float | None:
    """The time in seconds; None if it depends on an exchange that has not ended."""
    return value.end if isinstance(value, Exchange) else value
