"""A search as text: the answers, the layouts among which to choose, the code.

Input: a Search. Output: its text. Invariant: its first line is the answer.
"""

from __future__ import annotations

from torchfake.distributed.search.candidates import Candidate
from torchfake.distributed.search.search import Search
from torchfake.distributed.search.trials import Row
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.inspect.base_record import plain_text
from torchfake.inspect.describe.units import bytes_text, seconds_text
from torchfake.inspect.show.text import padded, plain_lines

SEARCHED = "; of axes dp, tp (its sequences too), replicate and ep, not pp and cp"
HEADER = ("mesh", "checkpoint", "micro-batch", "shards", "reserved", "step time", "fits")


@plain_text.register
def _(found: Search, *, depth: int | None = None) -> str:
    rows = [HEADER, *map(_cells, found.pareto)]
    parts = [plain_lines(_unknown_values(found)), "\n".join(padded(rows, (*HEADER[:2], HEADER[3])))]
    if found.fastest is not None:
        parts.append(found.fastest.code.rstrip())
    return "\n\n".join(parts)


def _unknown_values(found: Search) -> list[tuple[str, str]]:
    lines = []
    if found.fastest is None:
        lines.append(("fastest", f"none of {len(found.rows)} layouts fits{_nearest(found)}"))
    else:
        lines.append(("fastest", _layout(found.fastest, found.usable_bytes)))
    if found.cheapest is not None and found.cheapest is not found.fastest:
        lines.append(("cheapest", _layout(found.cheapest, found.usable_bytes)))
    unknown = sum(row.taken is None for row in found.rows)
    whole = "the layouts above were run with all layers, the others with few"
    tried = f"{len(found.rows)} layouts; {whole}"
    lines.append(("tried", tried + (f"; {unknown} cannot be run" if unknown else "") + SEARCHED))
    below = (
        "layouts on all GPUs that no other beats in both memory and time (Pareto); "
        "~ is extrapolated"
    )
    lines.append(("below", below))
    return lines


def _layout(found: TargetPlan, usable: int) -> str:
    strategy, batch, layout = found.strategy, found.batch, found.plan.layout
    mesh = " x ".join(f"{name} {size}" for name, size in strategy.mesh.items())
    shards = ", shards on the CPU" if strategy.offload else ""
    shards += ", ZeRO-2" if strategy.zero == 2 else ""
    shards += ", sequence parallel" if strategy.sequence_parallel else ""
    how = f"{mesh}, checkpoint {strategy.checkpoint}, micro-batch {batch.micro}{shards}"
    speed = "" if found.step_seconds is None else f": {seconds_text(found.step_seconds)} a step"
    if found.tokens_per_second is not None:
        speed += f", {found.tokens_per_second:,.0f} tokens/s on each GPU"
    reserved = found.plan.peak_reserved_bytes or 0
    memory = f"{bytes_text(reserved)} reserved of {bytes_text(usable)}"
    gpus = "1 GPU" if layout.num_ranks == 1 else f"{layout.num_ranks} GPUs"
    return f"{gpus}, {how}{speed}; {memory}"


def _nearest(found: Search) -> str:
    taken = [row.taken.reserved_bytes for row in found.rows if row.taken is not None]
    least = f"; the smallest reserves {bytes_text(min(taken))} of {bytes_text(found.usable_bytes)}"
    return least + ": more GPUs, shorter sequences, or another precision" if taken else ""


def _cells(row: Row) -> tuple[str, ...]:
    candidate, taken = row.candidate, row.taken
    assert taken is not None
    seconds = "" if taken.step_seconds is None else seconds_text(taken.step_seconds)
    about = "~" if taken.is_extrapolated else ""
    return (
        candidate.mesh_text,
        candidate.checkpoint,
        f"{candidate.micro_batch}",
        _shards(candidate),
        about + bytes_text(taken.reserved_bytes),
        about + seconds,
        "yes" if row.fits else "no",
    )


def _shards(candidate: Candidate) -> str:
    parts = ["CPU" if candidate.offload else "GPU"]
    parts += ["ZeRO-2"] if candidate.zero == 2 else []
    parts += ["sequence parallel"] if candidate.is_sequence_parallel else []
    return ", ".join(parts)
