"""What one rank holds and sends, and those that hold as much.

Enters: the books of a rank's step. Leaves: a :class:`RankPlan`, plain data. Invariant: what is held
at the peak adds up to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from torchfake.distributed.ledger import COMMUNICATION, UNSHARDED, Traffic
from torchfake.inspect.ledger import CATEGORIES
from torchfake.inspect.memory import Estimate, Peak

KINDS = (*CATEGORIES, UNSHARDED, COMMUNICATION)
"""What bytes of a rank are for: the categories of an estimate, and two more. ``unsharded
parameters`` are those FSDP has gathered, ``communication`` what is sent from and received into that
is neither a parameter, a gradient nor an activation."""

ORDER = [
    KINDS.index(name)
    for name in (
        *("parameters", "gradients", "optimizer state", "activations", UNSHARDED, COMMUNICATION),
        *("temporaries", "buffers", "inputs"),
    )
]


@dataclass(frozen=True, repr=False)
class RankPlan:
    """What each of some ranks holds and sends: they hold shards of the same sizes."""

    ranks: tuple[int, ...]  # that this is about; it was run as the first
    traffic: tuple[Traffic, ...]  # what each of them sends
    estimate: Estimate = field(compare=False)  # of the step, as `estimate` gives it
    roles: np.ndarray[Any, Any] = field(compare=False)  # int8 [lives of the estimate]

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once, from the second step on."""
        return self.estimate.peak_bytes

    @cached_property
    def peak(self) -> Peak:
        """The moment at which most is held; its categories are KINDS."""
        peak = self.estimate.peak
        return Peak(**{**peak.__dict__, "by_category": self._by_kind(peak)})

    @cached_property
    def kinds(self) -> np.ndarray[Any, Any]:
        """What each storage is for, int8 [lives of the estimate] into KINDS."""
        category = self.estimate.lives.category
        passing = category == CATEGORIES.index("temporaries")
        kept = passing | (category == CATEGORIES.index("activations"))
        kinds = np.where(kept & (self.roles == 1), KINDS.index(UNSHARDED), category)
        return np.where(passing & (self.roles == 2), KINDS.index(COMMUNICATION), kinds)

    def _by_kind(self, peak: Peak) -> dict[str, int]:
        alive = self.estimate._alive(peak.event)
        sums = np.bincount(self.kinds[alive], self.estimate.sizes[alive], minlength=len(KINDS))
        found = {name: int(n) for name, n in zip(KINDS, sums, strict=True) if n}
        if self.estimate.workspace_bytes:
            found["workspace"] = self.estimate.workspace_bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def most_bytes(self) -> dict[str, int]:
        """The most that is held of each kind at once, in the order of KINDS; at times of their own,
        so they do not add up to the peak.
        """
        estimate = self.estimate
        most = (estimate._total(estimate.born, self.kinds == i).max(initial=0) for i in ORDER)
        return {KINDS[i]: int(n) for i, n in zip(ORDER, most, strict=True)}

    @property
    def parameter_bytes(self) -> int:
        """Of its shards of the parameters."""
        return self.most_bytes["parameters"]

    @property
    def gradient_bytes(self) -> int:
        """Of their gradients."""
        return self.most_bytes["gradients"]

    @property
    def optimizer_bytes(self) -> int:
        """Of the optimizer's state."""
        return self.most_bytes["optimizer state"]

    @property
    def activation_bytes(self) -> int:
        """The most that the forward pass keeps for the backward pass."""
        return self.most_bytes["activations"]

    @property
    def sent_bytes(self) -> int:
        """What it sends in one step, in rings."""
        return sum(row.sent_bytes for row in self.traffic)

    def to_dict(self) -> dict[str, Any]:
        """What was found, ready for JSON."""
        return {
            "ranks": list(self.ranks),
            "peak_bytes": self.peak_bytes,
            "first_step_peak_bytes": self.estimate.first_step_peak_bytes,
            "peak": self.peak.to_dict(),
            "most_bytes": self.most_bytes,
            "elsewhere": self.estimate.elsewhere,
            "traffic": [row.to_dict() for row in self.traffic],
            "sent_bytes": self.sent_bytes,
        }
