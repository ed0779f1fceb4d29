"""A search as rows: the answers, the best layouts, the code.

Input: a Search. Output: blocks of rows. Invariant: its first line is the answer.
"""

from __future__ import annotations

from torchfake.distributed.search import trials
from torchfake.distributed.search.extrapolation import MARGIN
from torchfake.distributed.search.search import Search
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.distributed.target_plans.text import SHORT_PRECISIONS, rate_text
from torchfake.distributed.text import untimed_gpu_lines
from torchfake.inspect.arithmetic.uncounted import uncounted_lines, untimed_lines
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text, seconds_text
from torchfake.inspect.show.rows import VERDICT, Block, Column, Line, Row, as_lines

_SEARCHED = "; of axes dp, tp (its sequences too), replicate and ep, not pp and cp"
_COLUMNS = (
    Column("mesh"),
    Column("checkpoint"),
    Column("micro-batch", str, need=1),
    Column("shards", need=2, under="shards on "),
    Column("reserved", str),
    Column("step time", str),
    Column("fits", emphasis=VERDICT),
)


@shown.register
def _(found: Search, *, depth: int | None = None) -> list[Block]:
    rows = [_row(row) for row in found.pareto]
    code = [Block(code=found.shown_code)] if found.shown_code else []
    return [as_lines(_answers(found)), Block(rows, _COLUMNS), *code]


def _answers(found: Search) -> list[Line]:
    lines = []
    if found.fastest is None:
        lines.append(
            ("fastest", f"none of {len(found.rows)} layouts fits{_nearest(found)}{_step(found)}")
        )
    else:
        layout = _layout(found.fastest, found.usable_bytes)
        is_timed = found.fastest.plan.time is not None
        lines.append(("fastest" if is_timed else "fits", f"{layout}{_step(found)}"))
        lines += untimed_gpu_lines(found.gpu)
    if found.cheapest is not None and found.cheapest is not found.fastest:
        lines.append(("fewest", f"{_layout(found.cheapest, found.usable_bytes)}{_faster(found)}"))
    if (shown := found.fastest or found.cheapest) is not None:
        lines += uncounted_lines(shown.plan.uncounted) + untimed_lines(shown.plan.untimed)
    unknown = sum(row.taken is None for row in found.rows)
    whole = "the layouts above were run with all layers, the others with few"
    tried = f"{len(found.rows)} layouts; {whole}"
    lines.append(("tried", tried + (f"; {unknown} cannot be run" if unknown else "") + _SEARCHED))
    below = (
        "layouts on all GPUs that no other beats in both memory and time (Pareto); "
        f"~ is extrapolated, reserved bytes within {100 * MARGIN:.0f} %; "
        "perhaps: so near that only torchfake plan of the layout can tell"
    )
    lines.append(("below", below))
    return lines


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
    seconds, is_bound = found.plan.step_seconds_at_least, found.plan.is_lower_bound
    speed = "" if seconds is None else f": {'at least ' * is_bound}{seconds_text(seconds)} a step"
    if seconds is not None:
        speed += f", {'at most ' * is_bound}{rate_text(found)}"
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


def _row(row: trials.Row) -> Row:
    candidate, taken = row.candidate, row.taken
    assert taken is not None
    seconds = "" if taken.step_seconds is None else seconds_text(taken.step_seconds)
    shards = "CPU" if candidate.offload else "GPU"
    about = "~" if taken.is_extrapolated else ""
    values = (
        candidate.checkpoint,
        candidate.micro_batch,
        ", ".join([shards, *_options(candidate.zero, candidate.is_sequence_parallel)]),
        about + bytes_text(taken.reserved_bytes),
        about + seconds,
        row.verdict,
    )
    return Row(candidate.mesh_text, values)


def _options(zero: int | None, is_sequence_parallel: bool) -> list[str]:
    return ["ZeRO-2"] * (zero == 2) + ["sequence parallel"] * is_sequence_parallel
