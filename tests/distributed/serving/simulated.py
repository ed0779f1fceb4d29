"""A server token by token: what ``loads.steady`` computes, simulated.

Input: the time of a pass, a number of users, the lengths of requests. Output: what the users saw.
Invariant: nothing is averaged before the end; each pass has the tokens of the requests in it.

Users send their next request when they have their answer (a closed loop), which reaches the server
in the course of the next pass. The lengths of answers are drawn around their mean, since equal ones
would all begin and end in the same pass.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from torchfake.distributed.passes.loads import Request, TimeOf
from torchfake.distributed.passes.pass_time import Load


@dataclass
class Seen:
    """What the users of a simulated server saw, after the first requests of all of them."""

    seconds_per_token: float
    first_token_seconds: float
    tokens_per_second: float


@dataclass(eq=False)
class _Sequence:
    prompt: int
    answer: int
    arrived: float
    read: int = 0
    written: int = 0
    began: float = 0.0  # when its first token was there


@dataclass
class Simulation:
    """A server and its users."""

    time_of: TimeOf
    users: int
    request: Request
    most: int  # tokens of a pass
    under_way: int | None = None  # requests whose caches fit; None: all
    ahead: int = 1  # passes that the host has launched when it puts one together
    seed: int = 0
    now: float = 0.0
    begun: float = 0.0  # when the last pass began
    on_the_way: list[_Sequence] = field(default_factory=list)
    waiting: deque[_Sequence] = field(default_factory=deque)  # for memory
    reading: deque[_Sequence] = field(default_factory=deque)
    writing: list[_Sequence] = field(default_factory=list)
    ended: list[tuple[_Sequence, float]] = field(default_factory=list)

    def run(self, rounds: int = 8) -> Seen:
        """Simulate so many requests of each user, of which the first three are not counted."""
        draw = random.Random(self.seed)
        for _ in range(self.users):
            self._sends(draw, 0.0)
        while len(self.ended) < rounds * self.users:
            before = self.now
            for _ in range(self._pass()):
                self._sends(draw, self.now - before)
        counted = self.ended[3 * self.users :]
        began = self.ended[3 * self.users - 1][1]
        tokens = sum(each.answer for each, _ in counted)
        return Seen(
            fmean((end - each.began) / (each.answer - 1) for each, end in counted),
            fmean(each.began - each.arrived for each, _ in counted),
            tokens / (self.now - began),
        )

    def _sends(self, draw: random.Random, within: float) -> None:
        answer = max(2, round(self.request.answer * draw.uniform(0.5, 1.5)))
        arrives = self.now + draw.uniform(0, within)
        self.on_the_way.append(_Sequence(self.request.prompt, answer, arrives))

    def _receive(self) -> None:
        """What had arrived when the host put the pass together; the server that has nothing else to
        do waits for the first.
        """
        self.on_the_way.sort(key=lambda each: each.arrived)
        seen = self.begun if self.ahead else self.now
        if not (self.waiting or self.reading or self.writing):
            seen = self.now = max(self.now, self.on_the_way[0].arrived)
        while self.on_the_way and self.on_the_way[0].arrived <= seen:
            self.waiting.append(self.on_the_way.pop(0))

    def _pass(self) -> int:
        """One pass; the number of requests that ended in it."""
        self._receive()
        self.begun = self.now
        while self.waiting and len(self.reading) + len(self.writing) < (self.under_way or 1 << 30):
            self.reading.append(self.waiting.popleft())
        parts, left = [], self.most - len(self.writing)
        for each in self.reading:
            if left > 0:
                parts.append((each, min(left, each.prompt - each.read)))
                left -= parts[-1][1]
        self.now += self.time_of(self._load(parts)).seconds
        for each in self.writing:
            each.written += 1
        for each, length in parts:
            each.read += length
            if each.read == each.prompt:
                self.reading.popleft()
                self.writing.append(each)
                each.written, each.began = 1, self.now
        ended = [each for each in self.writing if each.written == each.answer]
        self.writing = [each for each in self.writing if each.written < each.answer]
        self.ended += [(each, self.now) for each in ended]
        return len(ended)

    def _load(self, parts: list[tuple[_Sequence, int]]) -> Load:
        tokens = sum(length for _, length in parts)
        users = len(self.writing)
        before = fmean(each.read for each, _ in parts) if parts else 0
        context = fmean(each.prompt + each.written for each in self.writing) if users else 0
        return Load(tokens, len(parts), before, users, context)
