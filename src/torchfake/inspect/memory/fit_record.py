"""The record of a fit: whether a step fits on each of several GPUs.

Input: peaks of the memory that a step reserves on GPUs. Output: a :class:`Fit` for each GPU, and
:class:`Fits`, plain data. Invariant: there is one verdict, which text, JSON and tables share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchfake.inspect.allocator.outside import CONTEXT_BYTES, MARGIN_BYTES, verdict_of
from torchfake.inspect.contents.described import described_weights
from torchfake.inspect.contents.weights import Weights
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.several_gpus import Layout
from torchfake.inspect.records.record import Record
from torchfake.inspect.serve import Serve

RESERVED_BYTES = CONTEXT_BYTES + MARGIN_BYTES
"""Memory that the caching allocator cannot use, by default 1 GiB: 512 MiB for the CUDA context,
512 MiB as a margin for scratch memory of kernels. Both are round figures, not measured ones."""


@dataclass(frozen=True)
class Fit:
    """Whether a step fits on one GPU."""

    gpu: str  # the profile's name
    total_bytes: int  # memory of the GPU
    reserved_bytes: int  # memory that the caching allocator cannot use: CUDA context and margin
    peak_bytes: int  # peak of allocated memory, at the estimate's size
    vary: str | None  # "batch" or "seq"
    size: int | None  # the estimate's batch size or sequence length
    largest: int | None  # the largest size that fits; 0 if none fits
    limited_by: str | None  # "memory", "model" (runs on no larger size) or "search" (MAX_SIZE)
    peak_reserved_bytes: int  # peak that the caching allocator reserves; decides the verdict
    with_room_bytes: int | None = None  # peak that it reserves where there is room for all caches
    users: int | None = None  # the most users that fit, with the estimate's context
    context: int | None = None  # the longest context that fits, with the estimate's users
    context_limited_by: str | None = None  # as `limited_by`, for `context`
    serve: Serve | None = None  # the workload, if a model is served; `vary` is then "users"
    step_seconds: float | None = None  # at the estimate's size; None if not known, and of a plan
    is_bound_by_launches: bool = False  # whether the host bounds that time, whatever the GPU
    failure: str | None = None  # where `size` is the largest that runs, the error at a larger one

    @property
    def tokens(self) -> int | None:
        """The most tokens in the cache: with the most users, or with the longest context."""
        if self.serve is None:
            return None
        of_users, of_context = (self.users or 0) * self.serve.context, self.context or 0
        return max(of_users, of_context * self.serve.users)

    @property
    def fits(self) -> bool:
        """Whether the step fits at the size it was estimated for."""
        return self.headroom_bytes >= 0

    @property
    def frees_cached_blocks(self) -> bool:
        """Whether the step fits only because the allocator frees cached blocks and tries again: it
        would reserve more than there is, though no more is allocated.
        """
        return self.fits and (self.with_room_bytes or 0) > self.usable_bytes

    @property
    def verdict(self) -> str:
        """``"yes"``, ``"no"``, or ``"tight"``: fits, with less than 5 % of the memory left."""
        return verdict_of(self.headroom_bytes, self.total_bytes)

    @property
    def usable_bytes(self) -> int:
        """Memory of the GPU that the caching allocator can use."""
        return self.total_bytes - self.reserved_bytes

    @property
    def headroom_bytes(self) -> int:
        """Bytes left at the peak of reserved memory; if negative, the bytes that are missing.

        If memory is short, the allocator releases cached blocks before it fails, so a step that
        would reserve more on a larger GPU may fit with little left.
        """
        return self.usable_bytes - self.peak_reserved_bytes

    def to_dict(self) -> dict[str, Any]:
        """All fields and derived values, as a dict for JSON."""
        names = ("fits", "verdict", "headroom_bytes", "usable_bytes", "frees_cached_blocks")
        derived = {name: getattr(self, name) for name in names}
        found = {**self.__dict__, **derived}
        if self.failure is None:
            del found["failure"]
        if self.serve is None:
            for name in ("users", "context", "context_limited_by", "serve"):
                del found[name]
            return found
        return {**found, "serve": self.serve.to_dict(), "tokens": self.tokens}


@dataclass(frozen=True, repr=False)
class Fits(Record, Sequence[Fit]):
    """Whether a step fits on each of several GPU types."""

    estimate: Estimate
    items: tuple[Fit, ...]
    shown: Estimate  # the step on the smallest GPU that it fits on, or if on none, on the largest
    mesh: str | None = None  # of a plan: the ranks, each with its own GPU, and the sizes found
    layout: Layout | None = None  # over several GPUs, if the step fits on no single one
    next_commands: tuple[str, ...] = ()  # code to paste that plans this layout
    ran: tuple[str, ...] = ()  # of these, those whose sizes were run by the search, and fit
    refused: Mapping[str, str] = field(default_factory=dict)  # GPUs it does not run on, and why
    notes: tuple[str, ...] = ()  # on how the model was built
    other_command: str = ""  # that answers in `other_format`, the format of the model's config

    @property
    def fits(self) -> bool:
        """Whether the step fits on any of the GPUs."""
        return any(fit.fits for fit in self.items)

    @property
    def verdict(self) -> str:
        """``"yes"``, ``"no"``, or ``"tight"`` if it fits only with little of the memory left."""
        verdicts = {fit.verdict for fit in self.items}
        return next(word for word in ("yes", "tight", "no") if word in verdicts)

    @property
    def shown_fit(self) -> Fit:
        """Of `items`, the one that `shown` is for."""
        return chosen_of(self.items)

    @property
    def other_weights(self) -> Weights | None:
        """The weights in the format of the model's config, if that was not counted."""
        is_other = bool(self.estimate.counted.other_format)
        return described_weights(self.estimate.subject.module) if is_other else None

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def to_dict(self) -> dict[str, Any]:
        """The estimate `shown` and all fits, as a dict for JSON."""
        return {
            "verdict": self.verdict,
            "estimate": self.shown.to_dict(),
            "fits": [fit.to_dict() for fit in self.items],
            **({} if self.mesh is None else {"mesh": self.mesh}),
            **({"does_not_run_on": dict(self.refused)} if self.refused else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            **self._other_to_dict(),
            **({"next": list(self.next_commands)} if self.next_commands else {}),
        }

    def _other_to_dict(self) -> dict[str, Any]:
        name, weights = self.estimate.counted.other_format, self.other_weights
        if not name:
            return {}
        size = None if weights is None else weights.num_bytes
        command = self.other_command or None
        return {"other_format": {"format": name, "weights_bytes": size, "command": command}}


def chosen_of(fits: Sequence[Fit]) -> Fit:
    """The smallest GPU that the step surely fits on, else one that is tight, else the largest."""
    by_size = sorted(fits, key=lambda fit: fit.total_bytes)
    wanted = (fit for verdict in ("yes", "tight") for fit in by_size if fit.verdict == verdict)
    return next(wanted, by_size[-1])
