"""A list of requests that a server works off: ``trtllm-bench throughput``.

Input: the time of a pass, the most requests under way, the lengths of requests. Output: seconds
until the last answer ends. Invariant: each pass has the tokens of the requests in it, and reads
whole prompts; passes in which no answer ends, and as many prompts are read, are taken together.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchfake.distributed.passes.loads import Request, TimeOf
from torchfake.distributed.passes.pass_time import Load

_PARTS = 6
"""Passes that read prompts are taken together, until the users are as many parts more."""


@dataclass
class Queue:
    """A server, and requests of equal lengths."""

    time_of: TimeOf
    users: int  # requests under way, at most
    request: Request
    most: int  # tokens of a pass of each rank
    ranks: int = 1  # which read prompts of their own

    def seconds_of(self, number: int) -> float:
        """Seconds from the beginning until the last of so many requests ends."""
        prompt, answer = self.request.prompt, self.request.answer
        seconds = 0.0
        writing: list[list[int]] = []  # how many requests have written how many tokens
        while number or writing:
            decoding = sum(many for many, _ in writing)
            at_once = self.ranks * int(max(self.most - decoding / self.ranks, 0) // prompt)
            waiting = min(number, self.users - decoding)
            begun = min(waiting, at_once)  # in each pass
            steps = min((answer - written for _, written in writing), default=answer)
            if begun:
                steps = min(steps, max(waiting // begun // _PARTS, 1))
            written = sum(many * (of + steps / 2) for many, of in writing)
            written += begun * steps * (steps - 1) / 2
            beside = decoding + begun * (steps - 1) / 2  # on average
            load = Load(begun * prompt, begun, 0, beside, prompt + written / max(beside, 1))
            seconds += steps * self.time_of(load).seconds
            number -= begun * steps
            writing = [[many, of + steps] for many, of in writing if of + steps < answer]
            new = 1 + (steps - 1) // 2
            writing += [[begun * steps, new]] if begun and answer > new else []
        return seconds
