"""Runs the candidates of a search, with few layers or whole (with all layers).

Input: a function that plans a layout. Output: a :class:`Row` for each candidate, and plans of the
candidates that were run whole. Invariant: no layout is run twice with the same number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.distributed.parallelize.checkpoints import CHECKPOINTS, text_of
from torchfake.distributed.search.candidates import Candidate, candidates, splits, variants
from torchfake.distributed.search.extrapolation import Layers, Taken, depths_of, taken
from torchfake.distributed.search.measurements import Measured, measured
from torchfake.distributed.search.mixed_checkpoints import Ways, at_full_depth, exposed_share
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.errors import InputsError
from torchfake.inspect.memory.fit import RESERVED_BYTES

_MOST_RUN_WHOLE = 4
"""The number of layouts that are run whole before the search gives up on an answer."""

_MOST_REFINED = 3
"""The number of times that a mix is improved after it was run whole."""

_MOST_VARIED = 2
"""The number of layouts of which variants are tried."""

_WORTH = 0.01
"""The smallest share of a step's time that is worth saving."""


class Row(NamedTuple):
    """One layout that was tried."""

    candidate: Candidate
    taken: Taken | None  # None if the model does not support the layout
    fits: bool
    error: str = ""  # why the model does not support the layout
    is_near: bool = False  # the error of what is extrapolated is larger than what is left or lacks
    is_tight: bool = False  # a run with all layers leaves less than 5 % of the memory

    @property
    def verdict(self) -> str:
        """``"yes"``, ``"tight"``, ``"no"``; or ``"perhaps"``: a run with all layers can tell."""
        if self.is_near:
            return "perhaps"
        return "tight" if self.is_tight else "yes" if self.fits else "no"

    @property
    def slowness(self) -> float:
        """The seconds of a step, or infinity if they are not known."""
        seconds = None if self.taken is None else self.taken.step_seconds
        return float("inf") if seconds is None else seconds

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        candidate = self.candidate
        return {
            "mesh": candidate.mesh,
            "checkpoint": candidate.checkpoint,
            "micro_batch": candidate.micro_batch,
            "offload": candidate.offload,
            "zero": candidate.zero,
            "sequence_parallel": candidate.is_sequence_parallel,
            **({} if self.taken is None else self.taken._asdict()),
            "fits": self.fits,
            "verdict": self.verdict,
            "error": self.error,
        }


class Trials:
    """Runs candidates.

    Args:
        planned: plans a layout with a number of layers; None: all.
        layers: gives the blocks of the model with a number of layers; None: all.
        depth: the number of layers of the model; None if it is not known.
        gpu: the GPU type.
        checkpoints: the ways to checkpoint blocks.
        num_experts: the number of experts of a layer in a mixture of experts.
    """

    def __init__(
        self,
        planned: Callable[[Candidate, int | None], TargetPlan],
        layers: Callable[[int | None], Layers],
        depth: int | None,
        gpu: CudaProfile,
        checkpoints: Sequence[str],
        num_experts: int = 0,
    ) -> None:
        self._planned, self._layers, self._depth = planned, layers, depth
        self._num_experts = num_experts
        self._depths = depths_of(layers(None), depth)
        self._checkpoints = sorted(checkpoints, key=_order)
        self.usable_bytes = gpu.total_memory - RESERVED_BYTES
        self.whole: dict[Candidate, Row] = {}  # candidates that were run whole
        self._plans: dict[Candidate, TargetPlan] = {}  # their plans
        self._measured: dict[tuple[Candidate, int | None], Measured] = {}
        self._linear: set[Candidate] = set()  # layouts whose memory grew linearly in the layers
        self._ways: dict[Candidate, Ways] = {}
        self._told: dict[Candidate, Taken] = {}  # estimates of mixes, from those of their blocks

    def rows(self, found: Iterable[Candidate]) -> list[Row]:
        """Try candidates, except micro-batches larger than one that did not fit. If some ways to
        checkpoint a layout fit and others do not, mixes of them are tried too.
        """
        rows: list[Row] = []
        too_large: set[Candidate] = set()
        for candidate in found:
            layout = candidate._replace(micro_batch=0)
            if layout in too_large:
                continue
            row = self._row(candidate)
            if not row.fits and not row.is_near:
                too_large.add(layout)
            rows.append(row)
        return rows + list(self._mixes(rows))

    def varied(self, rows: Sequence[Row]) -> list[Row]:
        """Try variants of the fastest layouts that may be faster."""
        fastest = sorted((row for row in rows if row.fits), key=lambda row: row.slowness)
        layouts = list(dict.fromkeys(self._layout(row.candidate) for row in fastest))
        found = [
            variant._replace(checkpoint=checkpoint)
            for layout in layouts[:_MOST_VARIED]
            for variant in self._variants(layout)
            for checkpoint in self._checkpoints
        ]
        return self.rows(found) if found else []

    def _variants(self, layout: Candidate) -> Iterator[Candidate]:
        for variant in variants(layout):
            if self._may_pay(layout, variant):
                yield variant
        yield from splits(layout, self._num_experts)

    def on_fewer_gpus(self, gpus: int, batch: int) -> Iterator[Row]:
        """Try the layouts that take least memory on half of the GPUs, a quarter, and so on."""
        while gpus % 2 == 0:
            gpus //= 2
            least = candidates(gpus, batch, self._checkpoints[-1:])
            rows = [self._row(candidate) for candidate in least if candidate.micro_batch == 1]
            yield from rows
            if not any(row.fits for row in rows):
                return

    def first_that_fits(self, rows: Iterable[Row]) -> TargetPlan | None:
        """The plan of the first layout that fits when it is run whole."""
        hopeful = [row.candidate for row in rows if row.fits or row.is_near]
        for candidate in hopeful[:_MOST_RUN_WHOLE]:
            self._run_whole(candidate)
            best = self._refined(candidate) if candidate in self._told else candidate
            if self.whole[best].fits:
                return self._plans[best]
        return None

    def _row(self, candidate: Candidate) -> Row:
        try:
            found = self._taken(candidate)
        except InputsError as error:
            return Row(candidate, None, False, str(error))
        return self._told_row(candidate, found)

    def _told_row(self, candidate: Candidate, found: Taken) -> Row:
        least, most = found.reserved_range
        fits = found.reserved_bytes <= self.usable_bytes
        return Row(candidate, found, fits, is_near=least <= self.usable_bytes < most)

    def _taken(self, candidate: Candidate) -> Taken:
        if self._depths and self._depth is not None:
            layout = self._layout(candidate)._replace(micro_batch=0)
            depths = self._depths[:-1] if layout in self._linear else self._depths
            found = taken([self._measure(candidate, n) for n in depths], depths, self._depth)
            if found is not None:
                self._linear.add(layout)
                return found
        whole = self._measure(candidate, None)
        return Taken(whole.peak_bytes, whole.reserved_bytes, whole.step_seconds)

    def _measure(self, candidate: Candidate, num_layers: int | None) -> Measured:
        key = candidate, num_layers
        if key not in self._measured:
            names = self._layers(num_layers).names
            self._measured[key] = measured(self._planned(candidate, num_layers), names)
        return self._measured[key]

    def _run_whole(self, candidate: Candidate) -> None:
        if candidate in self._plans:
            return
        found = self._plans[candidate] = self._planned(candidate, None)
        row = self._measured[candidate, None] = measured(found, self._layers(None).names)
        whole = Taken(row.peak_bytes, row.reserved_bytes, row.step_seconds)
        is_tight = found.plan.fit is not None and found.plan.fit.verdict == "tight"
        self.whole[candidate] = Row(candidate, whole, found.fits, is_tight=is_tight)

    # Mixes of ways to checkpoint.

    def _layout(self, candidate: Candidate) -> Candidate:
        """The candidate with the way to checkpoint that keeps least, which stands for all ways."""
        return candidate._replace(checkpoint=self._checkpoints[-1])

    def _mixes(self, rows: Sequence[Row]) -> Iterator[Row]:
        fits = {row.candidate: row.fits for row in rows}
        most = self._checkpoints[0]
        for row in rows:
            candidate = row.candidate
            is_least = candidate == self._layout(candidate) and candidate.checkpoint != most
            if not row.fits or not is_least or fits.get(candidate._replace(checkpoint=most)):
                continue
            try:
                ways = self._ways[candidate] = self._ways_of(row)
                self._told[candidate] = ways.taken
            except InputsError:  # the model does not support one of the ways
                continue
            mix = ways.mixed(self.usable_bytes)
            if mix is not None and len(set(mix.kinds)) > 1:
                mixed = candidate._replace(checkpoint=text_of(mix.kinds))
                self._told[mixed] = mix.taken
                yield self._told_row(mixed, mix.taken)

    def _ways_of(self, row: Row) -> Ways:
        """Measure each way to checkpoint each block, with few layers if the row is extrapolated."""
        assert row.taken is not None
        run = self._depths[1] if row.taken.is_extrapolated else None
        kinds, of_model = self._layers(run).kinds, self._layers(None).kinds
        found = {
            way: self._measure(row.candidate._replace(checkpoint=way), run)
            for way in self._checkpoints
        }
        blocks = {way: at_full_depth(one.blocks, kinds, of_model) for way, one in found.items()}
        return Ways(self._checkpoints[-1], row.taken, blocks, exposed_share(found))

    def _refined(self, candidate: Candidate) -> Candidate:
        """Improve a mix, from its memory when it was run whole: the budget is corrected by the
        error of the estimate, or else bisected between the largest estimate that fitted and the
        smallest that did not. Returns the best mix found.
        """
        ways, best, last = self._ways[self._layout(candidate)], candidate, candidate
        fitted, missed = 0, ways.most_bytes
        for _ in range(_MOST_REFINED):
            row, told = self.whole[last], self._told[last].reserved_bytes
            assert row.taken is not None
            if row.fits:
                fitted = max(fitted, told)
            else:
                missed = min(missed, told)
            corrected = self.usable_bytes - (row.taken.reserved_bytes - told)
            mix = next(
                (
                    mix
                    for budget in (corrected, (fitted + missed) // 2)
                    if fitted < budget < missed
                    and (mix := ways.mixed(budget)) is not None
                    and candidate._replace(checkpoint=text_of(mix.kinds)) not in self.whole
                ),
                None,
            )
            if mix is None or (self.whole[best].fits and not _gains(mix.taken, self._told[best])):
                break
            last = candidate._replace(checkpoint=text_of(mix.kinds))
            self._told[last] = mix.taken
            self._run_whole(last)
            if _rank(self.whole[last]) < _rank(self.whole[best]):
                best = last
        return best

    # Variants that send less.

    def _may_pay(self, layout: Candidate, variant: Candidate) -> bool:
        """Whether steps wait for messages, and the permanent memory of the variant fits."""
        depths = self._depths[:2] or (None, None)
        try:
            before, after = (self._measure(layout, n) for n in depths)
        except InputsError:
            return False
        waits = after.exposed_seconds > _WORTH * (after.step_seconds or 0.0)
        more = 0 if depths[1] is None else (self._depth or 0) - depths[1]

        def whole(name: str) -> int:
            last: int = getattr(after, name)
            return last + more * (last - int(getattr(before, name)))

        gathered = whole("parameter_bytes") * layout.data_ranks // 2 if variant.zero == 2 else 0
        held = whole("state_bytes") * variant.copies + gathered
        return waits and held <= self.usable_bytes


def _gains(found: Taken, before: Taken) -> bool:
    """Whether a layout is enough faster to be worth a run."""
    seconds, slower = found.step_seconds, before.step_seconds
    return seconds is not None and slower is not None and seconds < (1 - _WORTH) * slower


def _rank(row: Row) -> tuple[bool, float]:
    """A sort key: rows that fit first, and the fastest of them first."""
    return not row.fits, row.slowness


def _order(checkpoint: str) -> int:
    return CHECKPOINTS.index(checkpoint) if checkpoint in CHECKPOINTS else len(CHECKPOINTS)
