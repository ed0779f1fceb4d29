"""A search as rows: the answers, the best layouts, the code.

Input: a Search. Output: blocks of rows. Invariant: its first line is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchfake.distributed.search import trials
from torchfake.distributed.search.extrapolation import MARGIN
from torchfake.distributed.search.search import Search
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.distributed.target_plans.text import SHORT_PRECISIONS, rate_text
from torchfake.distributed.text import time_in_short
from torchfake.inspect.arithmetic.uncounted import uncounted_line, untimed_line
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text, seconds_text
from torchfake.inspect.show.rows import VERDICT, Block, Column, Line, as_lines, table
from torchfake.inspect.timing.hardware import why_untimed

_SEARCHED = "; of axes dp, tp (its sequences too), replicate and ep, not pp and cp"


def _options(zero: int | None, is_sequence_parallel: bool) -> list[str]:
    return ["ZeRO-2"] * (zero == 2) + ["sequence parallel"] * is_sequence_parallel


def _extrapolated(name: str, unit: Callable[[Any], str]) -> Callable[[trials.Row], str]:
    """The text of a number, which says if it is extrapolated."""

    def text(row: trials.Row) -> str:
        value = getattr(row.taken, name)
        about = "~" if row.taken is not None and row.taken.is_extrapolated else ""
        return about + ("" if value is None else unit(value))

    return text


def _shards(row: trials.Row) -> str:
    of = row.candidate
    return ", ".join(["CPU" if of.offload else "GPU", *_options(of.zero, of.is_sequence_parallel)])


_COLUMNS = (
    Column("mesh", "candidate.mesh_text"),
    Column("checkpoint", "candidate.checkpoint"),
    Column("micro-batch", "candidate.micro_batch", str, need=1, under="micro-batch "),
    Column("shards", _shards, need=2, under="shards on "),
    Column("reserved", _extrapolated("reserved_bytes", bytes_text), str),
    Column("step time", _extrapolated("step_seconds", seconds_text), str),
    Column("fits", "verdict", emphasis=VERDICT),
)


@shown.register
def _(found: Search, *, depth: int | None = None) -> list[Block]:
    code = [Block(code=found.shown_code)] if found.shown_code else []
    layouts = table(found.pareto, _COLUMNS, "; ".join(_notes(found.pareto)) + ".")
    return [as_lines(_answers(found)), layouts, *code]


def _notes(rows: Sequence[trials.Row]) -> Iterator[str]:
    """What the table has, and what its signs mean."""
    yield "Layouts on all GPUs that no other beats in both memory and time (Pareto)"
    if any(row.taken is not None and row.taken.is_extrapolated for row in rows):
        yield f"~ is extrapolated, reserved bytes within {100 * MARGIN:.0f} %"
    if any(row.verdict == "perhaps" for row in rows):
        yield "perhaps: so near that only torchfake plan of the layout can tell"


def _answers(found: Search) -> Iterator[Line]:
    if found.fastest is None:
        none = f"none of {len(found.rows)} layouts fits"
        yield "fastest", f"{none}{_nearest(found)}{_step(found)}"
    else:
        is_timed = found.fastest.plan.time is not None
        layout = _layout(found.fastest, found.usable_bytes)
        yield "fastest" if is_timed else "fits", f"{layout}{_step(found)}"
        yield "step time", why_untimed(found.gpu)
    if found.cheapest is not None and found.cheapest is not found.fastest:
        yield "fewest", f"{_layout(found.cheapest, found.usable_bytes)}{_faster(found)}"
    if (shown := found.fastest or found.cheapest) is not None:
        yield from (uncounted_line(shown.plan.uncounted), untimed_line(shown.plan.untimed))
    unknown = sum(row.taken is None for row in found.rows)
    refused = f"; {unknown} cannot be run" if unknown else ""
    whole = "those of the first lines were run with all layers, the others with few"
    yield "tried", f"{len(found.rows)} layouts; {whole}{refused}{_SEARCHED}"


def _step(found: Search) -> str:
    """The step that the layouts are for: ``, on h100-80gb; training with adamw in bf16, ...``."""
    precision = SHORT_PRECISIONS.get(found.precision, found.precision)
    does = "without an optimizer" if found.optimizer == "none" else f"with {found.optimizer}"
    seq = "" if found.seq is None else f", seq {found.seq:,}"
    counted = f"training {does} in {precision}, global batch {found.batch:,}{seq}"
    return f", on {found.gpu.name}; {counted}"


def _layout(found: TargetPlan, usable: int) -> str:
    strategy, layout = found.strategy, found.plan.layout
    mesh = " x ".join(f"{name} {size}" for name, size in strategy.mesh.items())
    how = [mesh, f"checkpoint {strategy.checkpoint}", f"micro-batch {found.batch.micro}"]
    how += ["shards on the CPU"] if strategy.offload else []
    how += _options(strategy.zero, strategy.sequence_parallel)
    time, is_bound = time_in_short(found.plan), found.plan.is_lower_bound
    speed = f": {time}, {'at most ' * is_bound}{rate_text(found)}" if time else ""
    reserved = found.plan.peak_reserved_bytes or 0
    is_tight = " (tight)" * (found.verdict == "tight")
    memory = f"{bytes_text(reserved)} reserved of {bytes_text(usable)}{is_tight}"
    gpus = "1 GPU" if layout.num_ranks == 1 else f"{layout.num_ranks} GPUs"
    return f"{', '.join([gpus, *how])}{speed}; {memory}"


def _faster(found: Search) -> str:
    """How to find the fastest layout on the fewest GPUs, where only that of least memory is known.

    On fewer GPUs only micro-batches of 1 that keep no activations are tried.
    """
    assert found.cheapest is not None
    number = found.cheapest.plan.layout.num_ranks
    if number == found.num_gpus:
        return ""
    return f"; of least memory there, the fastest: --search --gpus {number}"


def _nearest(found: Search) -> str:
    taken = [row.taken.reserved_bytes for row in found.rows if row.taken is not None]
    least = f"; the smallest reserves {bytes_text(min(taken))} of {bytes_text(found.usable_bytes)}"
    return least + ": more GPUs, shorter sequences, or another precision" if taken else ""
