"""A plan as rows: the verdict, what each rank holds and sends.

Input: a Plan. Output: blocks of rows, see ``inspect/show/rows``; text. Invariant: ranks that look
equal share a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.distributed.layout import Layout
from torchfake.distributed.plan import Plan
from torchfake.distributed.ranks.rank_plan import RankPlan
from torchfake.distributed.ranks.rank_tracker import Traffic
from torchfake.distributed.step_time import StepTime
from torchfake.inspect.arithmetic.uncounted import uncounted_lines, untimed_lines
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text, compared_bytes, seconds_text
from torchfake.inspect.show.rows import Block, Column, Line, Row, as_lines
from torchfake.inspect.show.verdict import batch_of_rank, counted_text, verdict_text
from torchfake.inspect.timing.hardware import why_untimed

_CATEGORIES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer state": "optimizer",
    "activations": "activations",
    "unsharded parameters": "unsharded",
    "communication": "communication",
}
"""The categories that have a column, each with the header of its column."""

_NEED = {"activations": 3, "parameters": 4, "gradients": 5, "optimizer": 6, "unsharded": 7}
_RANKS_COLUMNS = (
    Column("ranks"),
    *(Column(name, bytes_text, need=_NEED.get(name, 8)) for name in _CATEGORIES.values()),
    Column("others", bytes_text, need=9),
    Column("peak", bytes_text),
    Column("sent", bytes_text, need=1),
    Column("bubble", str, need=2),
)
_TRAFFIC_COLUMNS = (
    Column("phase"),
    Column("collective"),
    Column("axis", need=1),
    Column("group size", str, need=4),
    Column("calls", "{:,}".format, need=3),
    Column("payload", bytes_text, need=2),
    Column("sent", bytes_text),
)

_MAX_ROWS = 12
"""The most rows of ranks that are shown; ranks with the highest peaks are shown first."""


@shown.register
def _(found: Plan, *, depth: int | None = None) -> list[Block]:
    return [plan_block(found, verdict_on_plan(found) + plan_lines(found)), *plan_tables(found)]


def plan_block(found: Plan, lines: Iterable[Line]) -> Block:
    """The lines about a plan, with a bar for each category of memory at the highest peak."""
    peak = found.highest.peak
    held = {name: n / max(peak.num_bytes, 1) for name, n in peak.by_category.items()}
    return as_lines(lines, held)


def plan_tables(found: Plan) -> list[Block]:
    """The tables of the memory and of the traffic of each rank."""
    traffic = [Row(row.phase, _traffic_values(row)) for row in found.traffic]
    return [_ranks(found), *[Block(traffic, _TRAFFIC_COLUMNS)] * bool(traffic)]


_MENTIONED_SHARE = 0.01
"""CPU memory is mentioned in the first line from this share of a GPU's memory on."""


def verdict_on_plan(
    plan: Plan, batch: str | None = None, precision: str | None = None
) -> list[Line]:
    """The line that says whether the model fits; none on a CPU.

    Args:
        plan: the plan.
        batch: the batch of all ranks, as text; by default that of a rank.
        precision: in what is computed, as text; by default it is not said.
    """
    if plan.fit is None:
        return []
    estimate = plan.highest.estimate
    held = estimate.counted.dtype
    precision = precision or (None if held is None else f"{held} parameters")
    counted = counted_text(estimate, batch or batch_of_rank(estimate), precision)
    if plan.cpu_bytes > _MENTIONED_SHARE * plan.fit.total_bytes:
        counted += f"; with {bytes_text(plan.cpu_bytes)} of CPU memory per rank"
    return [("fits", verdict_text(plan.fit, counted))]


def plan_lines(plan: Plan) -> list[Line]:
    """The lines above the tables and after the verdict, as names and values."""
    layout, peak = plan.layout, plan.highest.peak
    does = plan.highest.estimate.counted.does
    size_text = bytes_text if plan.gpu is None else compared_bytes
    where = plan.device if plan.gpu is None else f"{plan.device}, {plan.gpu.name}"
    lines = [
        ("plan", f"{plan.class_name}, {does} on {layout.num_ranks} ranks: {layout.text}"),
        ("device", where),
        ("highest peak", f"{size_text(peak.num_bytes)} on {_ranks_at_peak(plan)}"),
        ("  when", _moment(plan)),
        *_categories(plan.highest),
    ]
    if plan.peak_reserved_bytes is not None:
        lines.append(("reserved", compared_bytes(plan.peak_reserved_bytes)))
    lines += _time(plan)
    elsewhere = plan.highest.estimate.elsewhere
    lines += [
        ("CPU memory" if name == "cpu" else f"on {name}", bytes_text(n))
        for name, n in elsewhere.items()
        if n
    ]
    left_out = plan.highest.estimate.left_out
    return lines + [("" if i else "left out", line) for i, line in enumerate(left_out)]


def _categories(found: RankPlan) -> Iterator[Line]:
    """The bytes of each category at the peak, and the highest at another moment."""
    at_peak = found.peak.by_category
    for name in {**at_peak, **found.most_bytes}:
        most = found.most_bytes.get(name, at_peak.get(name, 0))
        texts = bytes_text(at_peak.get(name, 0)), bytes_text(most)
        if most:
            yield f"  {name}", ", at another moment ".join(dict.fromkeys(texts))


def _time(plan: Plan) -> list[Line]:
    if plan.time is None:
        return untimed_gpu_lines(plan.gpu)
    lines = [("step time", step_text(plan.time, is_lower_bound=plan.is_lower_bound))]
    if plan.mfu is not None:
        flops = f"{100 * plan.mfu:.0f} % of the GPU's peak in bfloat16"
        lines.append(("  model FLOPs", flops))
    return lines + uncounted_lines(plan.uncounted) + untimed_lines(plan.untimed)


def untimed_gpu_lines(gpu: CudaProfile | None) -> list[Line]:
    """The line that says why the time on a GPU is not estimated, if it is not."""
    why = why_untimed(gpu)
    return [("step time", why)] if why else []


def step_text(time: StepTime, *, is_lower_bound: bool = False) -> str:
    """The time of a step, and the part of it in which the GPU waits."""
    parts = {
        "other stages": time.bubble_seconds,
        "communication": time.exposed_seconds,
        "the host": time.idle_seconds,
    }
    waits = [f"{seconds_text(n)} for {name}" for name, n in parts.items() if n > 1e-6]
    listed = " and ".join([", ".join(waits[:-1]), *waits[-1:]] if len(waits) > 1 else waits)
    including = f", including {listed.replace(' for ', ' waiting for ', 1)}" if waits else ""
    return "at least " * is_lower_bound + seconds_text(time.seconds) + including


def _ranks_at_peak(plan: Plan) -> str:
    ranks = plan.highest.ranks
    others = f", and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"rank {ranks[0]} ({plan.layout.text_of(ranks[0])}){others}"


def _moment(plan: Plan) -> str:
    peak = plan.highest.peak
    doing = {"optimizer": "in the optimizer's step", "start": "before it begins"}
    text = doing.get(peak.phase, f"in the {peak.phase} pass")
    return text + "".join(f", {word}" for word in (peak.module, peak.op) if word)


def _ranks(plan: Plan) -> Block:
    alike: dict[tuple[str, ...], list[RankPlan]] = {}  # they differ by less than is shown
    for found in sorted(plan.by_ranks, key=lambda found: -found.peak_bytes):
        texts = zip(_RANKS_COLUMNS[1:], _rank_values(found), strict=True)
        alike.setdefault(tuple(column.text_of(value) for column, value in texts), []).append(found)
    rows = [_rank_row(several, plan.layout) for several in alike.values()]
    left = len(rows) - _MAX_ROWS
    note = f"and {left} more kinds of rank, with lower peaks" if left > 0 else ""
    return Block(rows[:_MAX_ROWS], _RANKS_COLUMNS, note=note)


def _rank_row(several: Sequence[RankPlan], layout: Layout) -> Row:
    ranks = sorted(rank for found in several for rank in found.ranks)
    return Row(_which(ranks, layout), _rank_values(several[0]))


def _bubble(found: RankPlan) -> str:
    """The time that a pipeline stage waits for others, as text."""
    if found.bubble_seconds is None or found.bubble_share is None:
        return ""
    return f"{seconds_text(found.bubble_seconds)}, {100 * found.bubble_share:.0f} %"


def _rank_values(found: RankPlan) -> tuple[Any, ...]:
    """The row of some ranks, in the columns of _RANKS_COLUMNS after the first."""
    held = found.peak.by_category
    sizes = [held.get(name, 0) for name in _CATEGORIES]
    sizes.append(found.peak_bytes - sum(sizes))
    sent = found.sent_bytes if found.traffic else None
    return *(size or None for size in sizes), found.peak_bytes, sent, _bubble(found)


def _which(ranks: Sequence[int], layout: Layout) -> str:
    """Ranks and their place in the mesh, as text: ``all 8``, or ``0-3 (pp 0)``."""
    if len(ranks) == layout.num_ranks > 1:
        return f"all {len(ranks)}"
    places = []
    for axis, size, own in zip(
        layout.axes, layout.shape, layout.coordinates[list(ranks)].T, strict=True
    ):
        found = sorted(set(own.tolist()))
        if len(found) < size:
            places.append(f"{axis} {_ranks_text(found)}")
    return _ranks_text(ranks) + (f" ({', '.join(places)})" if places else "")


def _ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in order, consecutive ones as a range: ``0-3, 6``; long lists are truncated.

    >>> _ranks_text([0, 1, 2, 3, 6]), _ranks_text(range(0, 100, 2))
    ('0-3, 6', '0, 2, 4, ... (50 ranks)')
    """
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:3], f"... ({len(ranks)} ranks)"])


def _traffic_values(row: Traffic) -> tuple[Any, ...]:
    """A row of traffic, in the columns of _TRAFFIC_COLUMNS after the first."""
    sent = row.num_bytes, row.sent_bytes
    return row.collective, row.axis, row.group_size, row.num_calls, *sent
