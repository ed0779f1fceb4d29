"""The public function ``search_layouts``: the fastest layout that fits, and the fewest GPUs.

Input: a TARGET, a number of GPUs, a batch. Output: a :class:`Search`, plain data. Invariant: the
layouts reported as answers were run with all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchfake._core import gpu_profiles
from torchfake._core.gpu_profiles import DEFAULT_PROFILE, CudaProfile
from torchfake._progress import progress
from torchfake.distributed.parallelize.checkpoints import CHECKPOINTS
from torchfake.distributed.parallelize.data_parallel import STAGES
from torchfake.distributed.search.candidates import Candidate, candidates
from torchfake.distributed.search.extrapolation import MARGIN, Layers
from torchfake.distributed.search.trials import Row, Trials
from torchfake.distributed.target_plans.adapted import precision_for
from torchfake.distributed.target_plans.target_plan import TargetPlan, plan_target
from torchfake.errors import InputsError
from torchfake.inspect.memory.small_heap import small_heap
from torchfake.inspect.records.record import Record
from torchfake.inspect.targets.build import build
from torchfake.inspect.targets.resolve import resolve


@dataclass(frozen=True, repr=False)
class Search(Record):
    """The layouts of a model that were tried."""

    target: str
    gpu: CudaProfile
    num_gpus: int
    batch: int  # samples of all ranks in a step
    usable_bytes: int  # memory of each GPU that the caching allocator can use
    rows: tuple[Row, ...]
    fastest: TargetPlan | None  # the fastest layout on all GPUs that fits
    cheapest: TargetPlan | None  # fits on the fewest GPUs; not the fastest there
    optimizer: str = "adamw"
    precision: str = "mixed"  # as for :class:`Strategy`
    seq: int | None = None  # tokens of a sequence, if the inputs have any

    @property
    def shown_code(self) -> str:
        """The code that ends the record's text: none unless it was asked for."""
        return "" if self.fastest is None else self.fastest.shown_code

    @property
    def fits(self) -> bool:
        """Whether any layout fits."""
        return self.fastest is not None

    @property
    def pareto(self) -> tuple[Row, ...]:
        """The layouts on all GPUs that no other beats in both time and memory; fastest first."""
        timed = [row for row in self.rows if row.candidate.num_gpus == self.num_gpus]
        kept: list[Row] = []
        for row in sorted(timed, key=_slowness):
            smallest = min((r.taken.reserved_bytes for r in kept if r.taken), default=None)
            if row.taken and (smallest is None or row.taken.reserved_bytes < smallest):
                kept.append(row)
        return tuple(kept)

    @property
    def verdict(self) -> str:
        """``"yes"``, ``"no"``, or ``"tight"`` if the fastest layout leaves little memory."""
        return "no" if self.fastest is None else self.fastest.verdict

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON."""
        return {
            "target": self.target,
            "gpu": self.gpu.name,
            "num_gpus": self.num_gpus,
            "batch": self.batch,
            "optimizer": self.optimizer,
            "precision": self.precision,
            "seq": self.seq,
            "fits": self.fits,
            "verdict": self.verdict,
            "extrapolated_reserved_within": MARGIN,
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

    Each layout is run with three small numbers of layers, and extrapolated if memory and time grow
    linearly; the layouts reported as answers are run with all layers. If a checkpointing mode does
    not fit but one that keeps less does, the mode is chosen block by block: the combination that
    fits and recomputes least, from what each block was found to keep and recompute. If the fastest
    layouts wait for communication, variants that send less (ZeRO-2, HSDP) or split more (sequences
    along ``tp``, experts along ``ep``) are tried too. If nothing fits, layouts are tried with
    sequence parallelism, then with shards in CPU memory. Pipelines and context parallelism are not
    tried.

    Args:
        text: a TARGET, see :func:`torchfake.inspect.resolve`.
        gpus: the number of GPUs.
        batch: the global batch size of a step.
        gpu: the GPU type.
        overrides: changes of the config or arguments, each as ``key=value``.
        checkpoints: the activation checkpointing modes to try.
        options: options of :func:`plan_target` for all layouts: ``seq``, ``precision``, ...

    Returns:
        All layouts in the order in which they were tried, and the answers.

    Raises:
        TargetError: if the target is invalid, or cannot be built.
        InputsError: if no layout divides the GPUs and the batch evenly, or an option is invalid.
    """
    profile, zero = gpu_profiles.profile(gpu), options.pop("zero", None)
    if zero is None:
        zero = STAGES.get(options.get("engine", "fsdp2"), (3,))[0]

    def overridden(layers: int | None) -> tuple[str, ...]:
        return (*overrides, *(() if layers is None else (f"num_hidden_layers={layers}",)))

    splits_sequences = options.pop("sequence_parallel", False)

    def planned(candidate: Candidate, layers: int | None) -> TargetPlan:
        return plan_target(
            text,
            gpu=profile,
            batch=batch,
            mesh=candidate.mesh,
            micro_batch=candidate.micro_batch,
            checkpoint=candidate.checkpoint,
            offload=candidate.offload,
            zero=candidate.zero,
            sequence_parallel=splits_sequences or candidate.is_sequence_parallel,
            overrides=overridden(layers),
            suggests=False,
            **options,
        )

    @cache
    def built(layers: int | None) -> tuple[Layers, int | None, int]:
        module = build(resolve(text, overrides=overridden(layers))).module
        depth = getattr(getattr(module, "config", None), "num_hidden_layers", None)
        of_parts = [getattr(part, "num_experts", 0) for part in module.modules()]
        num_experts = max((n for n in of_parts if isinstance(n, int)), default=0)
        return Layers.of(module), depth if isinstance(depth, int) else None, num_experts

    with progress("Searching"), small_heap():
        _, depth, num_experts = built(None)
        tried = Trials(
            planned, lambda layers: built(layers)[0], depth, profile, checkpoints, num_experts
        )
        rows = _tried_rows(tried, gpus, batch, checkpoints, zero)
        fastest = tried.first_that_fits(sorted(rows, key=_slowness))
        fewer = list(tried.on_fewer_gpus(gpus, batch)) if fastest is not None else []
        fewest = sorted(fewer, key=lambda row: (row.candidate.num_gpus, row.slowness))
        cheapest = tried.first_that_fits(fewest) or fastest
    by_candidate = {row.candidate: row for row in (*rows, *fewer)} | tried.whole
    found = tuple(by_candidate.values())
    return Search(
        text,
        profile,
        gpus,
        batch,
        tried.usable_bytes,
        found,
        fastest,
        cheapest,
        options.get("optimizer") or "adamw",
        precision_for(options.get("precision"), options.get("weights"), options.get("lora")),
        options.get("seq") if fastest is None else fastest.seq,
    )


def _tried_rows(
    tried: Trials, gpus: int, batch: int, checkpoints: Sequence[str], zero: int
) -> list[Row]:
    """The rows of layouts on all GPUs; if none fits, also layouts with sequence parallelism, and if
    still none fits, with shards in CPU memory.
    """
    rows: list[Row] = []
    for offload, is_sequence_parallel in ((False, False), (False, True), (True, False)):
        more = candidates(gpus, batch, checkpoints, offload, zero, is_sequence_parallel)
        rows += tried.rows(more)
        if any(row.fits for row in rows):
            break
    if not rows:
        raise InputsError(
            f"a batch of {batch} does not divide among {gpus} GPUs in any layout: give a multiple"
        )
    if all(row.taken is None for row in rows):
        raise InputsError(f"no layout can be run; the first: {rows[0].error}")
    return rows + tried.varied(rows)


def _slowness(row: Row) -> float:
    return row.slowness
