"""What a server under a load does: first tokens, the time of each later token, throughput.

Input: the time of a pass with any number of tokens, requests of given lengths, a number of users.
Output: seconds, and tokens per second. Invariant: the steady state of continuous batching is
computed, not simulated: as many prompts begin as answers end.

With `users` requests under way, each of which reads a prompt and writes an answer, every pass
decodes one token of each of those that have read their prompt, and reads as many tokens of prompts
as keep that number constant, up to the most tokens of a pass (chunked prefill, Agrawal et al. 2024,
"Sarathi-Serve").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchfake.distributed.passes.pass_time import Load, PassTime

TimeOf = Callable[[Load], PassTime]
"""The time of a pass through the whole model."""


@dataclass(frozen=True)
class Request:
    """The lengths of a request, in tokens."""

    prompt: int
    answer: int

    @property
    def mean_context(self) -> float:
        """Tokens in the cache while the answer is written, on average."""
        return self.prompt + self.answer / 2


@dataclass(frozen=True)
class Steady:
    """The steady state with a number of users."""

    users: int
    seconds: float  # of a pass, and so between two tokens of a user
    first_token_seconds: float  # from the arrival of a request, if it need not wait for memory
    tokens_per_second: float  # of answers, of all users
    parts: PassTime  # what takes the seconds of a pass

    @property
    def tokens_per_second_per_user(self) -> float:
        """Tokens that each user sees in a second."""
        return 1 / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """All figures by name, as a dict for JSON."""
        return {
            "users": self.users,
            "seconds_per_token": self.seconds,
            "first_token_seconds": self.first_token_seconds,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_user": self.tokens_per_second_per_user,
            "bound_by": self.parts.bound_by,
            "seconds_by_part": dict(self.parts.__dict__),
        }


def reading_seconds(time_of: TimeOf, request: Request, most: float, beside: float = 0) -> float:
    """Seconds until the first token of a prompt, which is read in passes over at most `most` of its
    tokens, each of which also decodes for `beside` other users.
    """
    found, read = 0.0, 0.0
    while read < request.prompt:
        length = min(most, request.prompt - read)
        found += time_of(Load(length, 1, read, beside, request.mean_context)).seconds
        read += length
    return found


def static_batch(time_of: TimeOf, batch: int, request: Request, most: int) -> float:
    """Seconds of a batch whose sequences begin and end at the same time."""
    at_once = max(1, most // request.prompt)
    whole, rest = divmod(batch, at_once)
    reading = whole * time_of(Load(at_once * request.prompt, at_once)).seconds if whole else 0.0
    reading += time_of(Load(rest * request.prompt, rest)).seconds if rest else 0.0
    decode = time_of(Load(users=batch, context=request.mean_context)).seconds
    return reading + decode * (request.answer - 1)


def steady(
    time_of: TimeOf,
    users: int,
    request: Request,
    most: int,
    ahead: int = 1,
    alone_reading: float = 0,
) -> Steady:
    """The steady state of continuous batching with so many requests under way.

    A closed network of two stations, by mean value analysis (Reiser and Lavenberg 1980): prompts
    are read one after the other, and answers are written side by side. How long each takes depends
    on how many requests are where, so both are found together. Requests arrive at random: each
    waits for half of the pass under way, for those that the host has launched `ahead` (one, if it
    works while the GPU computes: ``event_loop_overlap`` of SGLang's scheduler), and for the prompts
    before it. Its own prompt takes no less than when it is alone, `alone_reading` seconds: it
    cannot be divided among stages, nor among ranks with users of their own.
    """
    others = (users - 1) / users
    decoding, seconds = float(users), 0.0
    for _ in range(_MOST_ROUNDS):
        beside = others * decoding  # what a request sees of the others
        room = max(most - beside, 1.0)  # for tokens of prompts
        chunk = min(float(request.prompt), room)
        alone = time_of(Load(users=1 + beside, context=request.mean_context))
        full = time_of(_load(room, beside, request)).seconds
        own = max(reading_seconds(time_of, request, room, beside), alone_reading)
        reading = full * request.prompt / room  # of a prompt, while others wait
        before = seconds or alone.seconds
        waiting = _waiting(users, reading, max(request.answer - 1, 1) * before)
        each = waiting + reading + max(request.answer - 1, 1) * before
        arriving = others * users / each * before * request.prompt  # tokens of prompts, each pass
        mixed = time_of(_load(min(max(chunk, arriving), room), 1 + beside, request))
        share = min(arriving / chunk, 1.0)  # of passes that read prompts
        parts = alone.times(1 - share) + mixed.times(share)
        seconds = parts.seconds
        first = others * seconds * (0.5 + ahead) + waiting + own
        writing = (request.answer - 1) * seconds
        decoding = (decoding + users * writing / (first + writing)) / 2
        if abs(seconds - before) < _CLOSE * seconds:
            break
    tokens = users * request.answer / (first + writing)
    return Steady(users, seconds, first, tokens, parts)


_MOST_ROUNDS = 30
_CLOSE = 2e-3
"""The time of a pass is found if it changes by a smaller share."""


def _waiting(users: int, reading: float, writing: float) -> float:
    """Seconds that a prompt waits for those before it, of which the first is half read."""
    queue = busy = waiting = 0.0
    for number in range(1, users + 1):
        waiting = reading * max(queue - busy / 2, 0.0)
        rate = number / (waiting + reading + writing)
        queue, busy = rate * (waiting + reading), min(rate * reading, 1.0)
    return waiting


def _load(tokens: float, decoding: float, request: Request) -> Load:
    """A pass that reads so many tokens of prompts, which are in the middle of them on average."""
    length = min(tokens, request.prompt)
    before = (request.prompt - length) / 2
    return Load(tokens, tokens / request.prompt, before, decoding, request.mean_context)
