"""Limits of what users are to see, compared with what they do see.

Input: limits in seconds, a plan of a server. Output: which times meet them, by how much, and for
how many users. Invariant: a time is near to its limit if it is nearer than the error of such times;
an error that is not known counts as that of GPUs that were compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchfake.distributed.passes.loads import Steady
from torchfake.distributed.serving.serving_plan import ServingPlan

TIMES = {"first_token_seconds": "first token", "seconds_per_token": "each token"}
"""What times are called, by the names that their errors have in a plan."""


@dataclass(frozen=True)
class Limits:
    """What users are to see, in seconds; None: no limit."""

    first_token: float | None = None
    each_token: float | None = None

    def met_by(self, found: ServingPlan) -> bool:
        """Whether no user waits for memory, and all see their tokens in time."""
        return found.steady is not None and found.fits and self.hold_for(found.steady)

    def hold_for(self, steady: Steady) -> bool:
        """Whether users see their tokens in time."""
        return all(seconds <= limit for _, seconds, limit in self._compared(steady))

    def may_hold_for(self, found: ServingPlan) -> bool:
        """Whether no user waits for memory, and no time is past its limit by more than the error
        that is known of such times.
        """
        steady = found.steady
        return steady is not None and found.fits and (
            self.missed_by(steady).keys() <= self.near(found, steady).keys()
        )  # fmt: skip

    def may_be_missed_by(self, found: ServingPlan) -> bool:
        """Whether a time that meets its limit is nearer to it than the error, or is longer than its
        estimate by a cost that is not counted.
        """
        steady = found.steady
        if steady is None:
            return False
        in_time = self.shares(steady).keys() - self.missed_by(steady).keys()
        near = self.near(found, steady).keys()
        return bool(in_time) and (found.expands_cache or not near.isdisjoint(in_time))

    def most_users(self, found: ServingPlan) -> int:
        """The most users who see their tokens in time, none of whom waits for memory; 0 if even one
        is too many. More users wait for longer.
        """
        server = found.server
        few, many = 0, found.most_users_on_average // server.replicas
        steps = [1, found.users_of_replica, many]  # where the limit often is, which saves passes
        while few < many:
            number = next((n for n in steps if few < n <= many), (few + many + 1) // 2)
            steps = [n for n in steps if n > number]
            if self.hold_for(server.with_users(number)):
                few = number
            else:
                many = number - 1
        return few * server.replicas

    def shares(self, steady: Steady) -> dict[str, float]:
        """The times that have limits, each with how many times the limit it is."""
        return {TIMES[name]: seconds / limit for name, seconds, limit in self._compared(steady)}

    def missed_by(self, steady: Steady) -> dict[str, float]:
        """The times that are past their limits, each with how many times the limit it is."""
        return {name: share for name, share in self.shares(steady).items() if share > 1}

    def near(self, found: ServingPlan, steady: Steady) -> dict[str, float]:
        """The times of a plan that are nearer to their limits, on either side, than the error of
        such times, each with that error.
        """
        errors = found.least_errors
        return {
            TIMES[name]: errors[name]
            for name, seconds, limit in self._compared(steady)
            if _surely_met(name, errors[name]) < seconds / limit < 1 + errors[name]
        }

    def _compared(self, steady: Steady) -> Iterator[tuple[str, float, float]]:
        """The name of a time, as in the errors of a plan, its seconds and their limit."""
        if self.first_token is not None:
            yield "first_token_seconds", steady.first_token_seconds, self.first_token
        if self.each_token is not None:
            yield "seconds_per_token", steady.seconds, self.each_token


def _surely_met(name: str, error: float) -> float:
    """The largest share of its limit of a time that meets it whatever its error is. Errors are
    shares of what was published: of times for first tokens, and of tokens per second for others.
    """
    return 1 - error if name == "first_token_seconds" else 1 / (1 + error)


NO_LIMITS = Limits()
