"""A list of requests that a server works off: ``trtllm-bench throughput``.

Input: the time of a pass, the most requests under way, the lengths of requests. Output: seconds
until the last answer ends. Invariant: each pass has the tokens of the requests in it; passes in
which no prompt is read and no answer ends are alike, and taken together.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchfake.distributed.passes.loads import Request, TimeOf
from torchfake.distributed.passes.pass_time import Load


@dataclass
class Queue:
    """A server, and requests of equal lengths."""

    time_of: TimeOf
    users: int  # requests under way, at most
    request: Request
    most: int  # tokens of a pass

    def seconds_of(self, number: int) -> float:
        """Seconds from the beginning until the last of so many requests ends."""
        prompt, answer = self.request.prompt, self.request.answer
        seconds, unread = 0.0, 0  # tokens of prompts that were begun
        writing: list[list[int]] = []  # how many requests have written how many tokens
        while number or unread or writing:
            decoding = sum(many for many, _ in writing)
            begun = min(number, self.users - decoding - -(-unread // prompt))
            number, unread = number - begun, unread + begun * prompt
            tokens = min(unread, max(self.most - decoding, 0))
            steps = 1 if tokens else min(answer - written for _, written in writing)
            written = sum(many * (of + steps / 2) for many, of in writing) / max(decoding, 1)
            before = (prompt - min(tokens, prompt)) / 2
            load = Load(tokens, tokens / prompt, before, decoding, prompt + written)
            seconds += steps * self.time_of(load).seconds
            ended = -(-unread // prompt) - -(-(unread - tokens) // prompt)
            unread -= tokens
            writing = [[many, of + steps] for many, of in writing if of + steps < answer]
            writing += [[ended, 1]] if ended and answer > 1 else []
        return seconds
