"""The public function ``search_layouts``: the fastest layout that fits, and the cheapest in GPUs.

Input: a TARGET, a number of GPUs, a batch. Output: a :class:`Search`, plain data. Invariant: the
layouts that are named as answers were run whole. Called by: users, and ``cli``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torchfake._core import gpu_profiles
from torchfake._core.gpu_profiles import DEFAULT_PROFILE, CudaProfile
from torchfake.distributed.search.candidates import Candidate, candidates
from torchfake.distributed.search.depths import Taken, taken_at, taken_by
from torchfake.distributed.strategies.strategy import CHECKPOINTS
from torchfake.distributed.strategies.target_plan import TargetPlan, plan_target
from torchfake.errors import InputsError
from torchfake.inspect.base_record import Record
from torchfake.inspect.fit import RESERVED_BYTES
from torchfake.inspect.targets.build import build
from torchfake.inspect.targets.resolve import resolve

_MOST_RUN_WHOLE = 4
"""Layouts that are run whole before the search gives up on an answer."""


class Row(NamedTuple):
    """One layout that was tried."""

    candidate: Candidate
    taken: Taken | None  # None if it cannot be laid out so
    fits: bool
    error: str = ""  # why not

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return {
            "mesh": self.candidate.mesh,
            "checkpoint": self.candidate.checkpoint,
            "micro_batch": self.candidate.micro_batch,
            "offload": self.candidate.offload,
            **({} if self.taken is None else self.taken._asdict()),
            "fits": self.fits,
            "error": self.error,
        }


@dataclass(frozen=True, repr=False)
class Search(Record):
    """The layouts of a model that were tried."""

    target: str
    gpu: CudaProfile
    num_gpus: int
    batch: int  # samples of a step, of all ranks
    usable_bytes: int  # of each GPU's memory, for the caching allocator
    rows: tuple[Row, ...]
    fastest: TargetPlan | None  # that fits on all GPUs, run whole
    cheapest: TargetPlan | None  # that fits on the fewest, run whole

    @property
    def fits(self) -> bool:
        """Whether a layout fits."""
        return self.fastest is not None or self.cheapest is not None

    @property
    def pareto(self) -> tuple[Row, ...]:
        """The layouts of all GPUs of which none is both faster and smaller, fastest first."""
        timed = [row for row in self.rows if row.candidate.num_gpus == self.num_gpus]
        kept: list[Row] = []
        for row in sorted(timed, key=_slowness):
            smallest = min((r.taken.reserved_bytes for r in kept if r.taken), default=None)
            if row.taken and (smallest is None or row.taken.reserved_bytes < smallest):
                kept.append(row)
        return tuple(kept)

    def to_dict(self) -> dict[str, Any]:
        """What was found, ready for JSON."""
        return {
            "target": self.target,
            "gpu": self.gpu.name,
            "num_gpus": self.num_gpus,
            "batch": self.batch,
            "fits": self.fits,
            "fastest": None if self.fastest is None else self.fastest.to_dict(),
            "cheapest": None if self.cheapest is None else self.cheapest.to_dict(),
            "pareto": [row.to_dict() for row in self.pareto],
            "rows": [row.to_dict() for row in self.rows],
        }


def search_layouts(
    text: str,
    *,
    gpus: int,
    batch: int,
    gpu: str | CudaProfile = DEFAULT_PROFILE,
    overrides: Sequence[str] = (),
    checkpoints: Sequence[str] = CHECKPOINTS,
    **options: Any,
) -> Search:
    """Try layouts of the model that a TARGET names: meshes, checkpointing, micro-batches.

    Each is run with three depths of a few layers, and extrapolated where memory and time grow in
    proportion; the answers are run whole. Where nothing fits, shards are tried on the CPU.

    Args:
        text: a TARGET, see :func:`torchfake.inspect.resolve`.
        gpus: how many there are.
        batch: samples of all ranks in a step.
        gpu: what each is.
        overrides: ``key=value`` each, for its config or arguments.
        checkpoints: of activations, which are tried.
        options: of :func:`plan_target`, the same for all layouts: ``seq``, ``precision``, ...

    Returns:
        The layouts, in order of trial, and the answers.

    Raises:
        TargetError: if the target is not understood, or cannot be built.
        InputsError: if no layout divides the GPUs and the batch, or an option is not understood.
    """
    profile = gpu_profiles.profile(gpu)
    planned = partial(plan_target, text, gpu=profile, batch=batch, **options)
    tried = _Trials(planned, tuple(overrides), _depth(text, overrides), profile)
    rows: list[Row] = []
    for offload in (False, True):
        rows += tried.rows(candidates(gpus, batch, checkpoints, offload))
        if any(row.fits for row in rows):
            break
    if not rows:
        raise InputsError(
            f"a batch of {batch} does not divide among {gpus} GPUs in any layout: give a multiple"
        )
    if all(row.taken is None for row in rows):
        raise InputsError(f"no layout can be run; the first: {rows[0].error}")
    fastest = tried.first_that_fits(sorted(rows, key=_slowness))
    fewer = list(tried.on_fewer_gpus(gpus, batch)) if fastest is not None else []
    fewest = sorted(fewer, key=lambda row: (row.candidate.num_gpus, _slowness(row)))
    cheapest = tried.first_that_fits(fewest) or fastest
    found = tuple(tried.whole.get(row.candidate, row) for row in [*rows, *fewer])
    return Search(text, profile, gpus, batch, tried.usable_bytes, found, fastest, cheapest)


def _slowness(row: Row) -> float:
    found = None if row.taken is None else row.taken.step_seconds
    return float("inf") if found is None else found


def _depth(text: str, overrides: Sequence[str]) -> int | None:
    """How many layers the config of a model of transformers names."""
    config = getattr(build(resolve(text, overrides=overrides)).module, "config", None)
    depth = getattr(config, "num_hidden_layers", None)
    return depth if isinstance(depth, int) else None


class _Trials:
    """Runs candidates."""

    def __init__(
        self,
        planned: Callable[..., TargetPlan],
        overrides: tuple[str, ...],
        depth: int | None,
        gpu: CudaProfile,
    ) -> None:
        self._planned, self._overrides, self._depth = planned, overrides, depth
        self.usable_bytes = gpu.total_memory - RESERVED_BYTES
        self.whole: dict[Candidate, Row] = {}  # what those take that were run whole

    def rows(self, found: Iterator[Candidate]) -> Iterator[Row]:
        """What each takes; a micro-batch above one that does not fit is left out."""
        too_large: set[tuple[Any, ...]] = set()
        for candidate in found:
            layout = candidate._replace(micro_batch=0)
            if layout in too_large:
                continue
            row = self._row(candidate)
            if not row.fits:
                too_large.add(layout)
            yield row

    def on_fewer_gpus(self, gpus: int, batch: int) -> Iterator[Row]:
        """What fits on half of the GPUs, a quarter, and so on, with the least memory."""
        while gpus % 2 == 0:
            gpus //= 2
            least = (c for c in candidates(gpus, batch, ("full",)) if c.micro_batch == 1)
            rows = list(self.rows(least))
            yield from rows
            if not any(row.fits for row in rows):
                return

    def first_that_fits(self, rows: Sequence[Row]) -> TargetPlan | None:
        """The first layout that fits when it is run whole."""
        hopeful = [row.candidate for row in rows if row.fits]
        for candidate in hopeful[:_MOST_RUN_WHOLE]:
            found = self._run(candidate, None)
            self.whole[candidate] = Row(candidate, taken_by(found), found.fits)
            if found.fits:
                return found
        return None

    def _row(self, candidate: Candidate) -> Row:
        try:
            taken = taken_at(self._depth, partial(self._run, candidate))
        except InputsError as error:
            return Row(candidate, None, False, str(error))
        return Row(candidate, taken, taken.reserved_bytes <= self.usable_bytes)

    def _run(self, candidate: Candidate, layers: int | None) -> TargetPlan:
        depth = () if layers is None else (f"num_hidden_layers={layers}",)
        return self._planned(
            mesh=candidate.mesh,
            micro_batch=candidate.micro_batch,
            checkpoint=candidate.checkpoint,
            offload=candidate.offload,
            overrides=(*self._overrides, *depth),
        )
