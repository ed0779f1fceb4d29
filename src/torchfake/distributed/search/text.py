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
from torchfake.distributed.text import network_line, time_in_short
from torchfake.inspect.arithmetic.uncounted import uncounted_line, untimed_line
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text, seconds_text
from torchfake.inspect.show.rows import VERDICT, Block, Column, Line, as_lines, table
from torchfake.inspect.show.verdict import not_in
from torchfake.inspect.timing.hardware import why_untimed

_SEARCHED = "; meshes of dp, tp, replicate and ep, not of pp and cp"


def _options(zero: int | None, sequence_parallel: bool, offload: bool) -> tuple[str, ...]:
    """The options of a layout beside its mesh, where they are not the default."""
    found = {
        "ZeRO-2": zero == 2,
        "sequence parallel": sequence_parallel,
        "CPU offload": offload,
    }
    return tuple(name for name, is_set in found.items() if is_set)


def _extrapolated(name: str, unit: Callable[[Any], str]) -> Callable[[trials.Row], str]:
    """The text of a number, which says if it is extrapolated."""

    def text(row: trials.Row) -> str:
        value = getattr(row.taken, name)
        about = "~" if row.taken is not None and row.taken.is_extrapolated else ""
        return about + ("" if value is None else unit(value))

    return text


def _options_of(row: trials.Row) -> tuple[str, ...]:
    of = row.candidate
    return _options(of.zero, of.is_sequence_parallel, of.offload)


_COLUMNS = (
    Column("mesh", "candidate.mesh_text"),
    Column("checkpoint", "candidate.checkpoint", need=1, under="checkpoint "),
    Column("micro-batch", "candidate.micro_batch", str, need=2, under="micro-batch "),
    Column("options", _options_of, need=3, under=""),
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
        yield f"~ is extrapolated: reserved bytes may be up to {100 * MARGIN:.0f} % more or less"
    if sum(row.taken is not None and row.taken.step_seconds is not None for row in rows) > 1:
        yield "times that differ by less than their error may be in another order"
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
        yield network_line(found.fastest.plan)
    if found.verdict == "tight":
        yield "with room", [_row_text(row) for row in found.pareto if row.verdict == "yes"][:1]
    if found.cheapest is not None and found.cheapest is not found.fastest:
        yield "fewest", _fewest(found.cheapest, found.usable_bytes)
    if found.fastest is not None:
        plan = found.fastest.plan
        yield from (uncounted_line(plan.uncounted), untimed_line(plan.untimed))
    unknown = sum(row.taken is None for row in found.rows)
    refused = f"; {unknown} cannot be run" if unknown else ""
    is_about = any(row.taken is not None and row.taken.is_extrapolated for row in found.rows)
    whole = "; the fastest and the fewest GPUs were run with all layers, others with few" * is_about
    yield "tried", f"{len(found.rows)} layouts{whole}{refused}{_SEARCHED}"


def _step(found: Search) -> str:
    """The step that the layouts are for: ``, on h100-80gb; training with adamw in bf16, ...``."""
    precision = SHORT_PRECISIONS.get(found.precision, found.precision)
    does = "without an optimizer" if found.optimizer == "none" else f"with {found.optimizer}"
    seq = "" if found.seq is None else f", seq {found.seq:,}"
    run = found.fastest or found.cheapest
    other = not_in(run.plan.estimate.counted.other_format) if run else ""
    counted = f"training {does} in {precision}{other}, global batch {found.batch:,}{seq}"
    return f", on {found.gpu.name}; {counted}"


def _layout(found: TargetPlan, usable: int) -> str:
    time, is_bound = time_in_short(found.plan), found.plan.is_lower_bound
    speed = f": {time}, {'at most ' * is_bound}{rate_text(found)}" if time else ""
    return f"{_gpus(found)}, {_how_of(found)}{speed}; {_memory(found, usable)}"


def _row_text(row: trials.Row) -> str:
    """A layout of the table as text, with its time and its memory."""
    of = row.candidate
    how = _how(of.mesh_text, of.checkpoint, of.micro_batch, _options_of(row))
    reserved = _extrapolated("reserved_bytes", bytes_text)(row)
    time = _extrapolated("step_seconds", seconds_text)(row)
    each = f"{time} a step, " * bool(time)
    return f"{how}: {each}{reserved} reserved"


def _fewest(found: TargetPlan, usable: int) -> str:
    """What fits on the fewest GPUs, without a time: layouts that may be faster there are not tried.

    On fewer GPUs only micro-batches of 1 that keep no activations are tried.
    """
    number = found.plan.layout.num_ranks
    again = f"for the fastest layout there, the same search with --gpus {number}"
    return f"{_gpus(found)}: {_how_of(found)}; {_memory(found, usable)}; {again}"


def _gpus(found: TargetPlan) -> str:
    number = found.plan.layout.num_ranks
    return f"{number} GPU{'s' * (number > 1)}"


def _how_of(found: TargetPlan) -> str:
    strategy = found.strategy
    mesh = " x ".join(f"{name} {size}" for name, size in strategy.mesh.items())
    options = _options(strategy.zero, strategy.sequence_parallel, strategy.offload)
    return _how(mesh, strategy.checkpoint, found.batch.micro, options)


def _how(mesh: str, checkpoint: str | int, micro_batch: int, options: Sequence[str]) -> str:
    """The arguments of a layout: ``dp 8, checkpoint none, micro-batch 1``."""
    return ", ".join([mesh, f"checkpoint {checkpoint}", f"micro-batch {micro_batch}", *options])


def _memory(found: TargetPlan, usable: int) -> str:
    reserved = found.plan.peak_reserved_bytes or 0
    is_tight = " (tight)" * (found.verdict == "tight")
    return f"{bytes_text(reserved)} reserved of {bytes_text(usable)}{is_tight}"


def _nearest(found: Search) -> str:
    taken = [row.taken.reserved_bytes for row in found.rows if row.taken is not None]
    least = f"; the smallest reserves {bytes_text(min(taken))} of {bytes_text(found.usable_bytes)}"
    return least + ": more GPUs, shorter sequences, or another precision" if taken else ""
