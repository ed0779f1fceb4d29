"""A plan as text.

Input: a Plan. Output: its text, as ``inspect/show/text`` makes it of other records. Invariant: a
terminal and a notebook show the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torchfake.distributed.layout import Layout
from torchfake.distributed.plan import Plan
from torchfake.distributed.ranks.rank_plan import RankPlan
from torchfake.distributed.ranks.rank_tracker import Traffic
from torchfake.inspect.records.record import plain_text
from torchfake.inspect.records.units import bytes_text, compared_bytes, seconds_text
from torchfake.inspect.show.text import padded, plain_lines
from torchfake.inspect.show.verdict import verdict_text

_KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer state": "optimizer",
    "activations": "activations",
    "unsharded parameters": "unsharded",
    "communication": "communication",
}
"""The kinds of bytes that have a column, and its header."""

_RANKS_HEADER = ("ranks", *_KINDS.values(), "peak", "sent", "bubble")
_TRAFFIC_HEADER = ("phase", "collective", "axis", "group size", "calls", "payload", "sent")

_MAX_ROWS = 12
"""The most rows of ranks that are shown: those with the highest peaks."""


class _StepTime(Protocol):
    @property
    def seconds(self) -> float: ...
    @property
    def exposed_seconds(self) -> float: ...
    @property
    def idle_seconds(self) -> float: ...
    @property
    def bubble_seconds(self) -> float: ...


@plain_text.register
def _(found: Plan, *, depth: int | None = None) -> str:
    return "\n\n".join([plain_lines(plan_lines(found)), *plan_tables(found)])


def plan_tables(found: Plan) -> list[str]:
    """What each rank holds, and what it sends, as tables."""
    tables = ["\n".join(_ranks(found))]
    if found.traffic:
        table = [_TRAFFIC_HEADER, *map(_traffic_cells, found.traffic)]
        tables.append("\n".join(padded(table, _TRAFFIC_HEADER[:3])))
    return tables


def plan_lines(plan: Plan) -> list[tuple[str, str]]:
    """The lines above the tables: names and values."""
    layout, peak = plan.layout, plan.highest.peak
    size_text = bytes_text if plan.gpu is None else compared_bytes
    where = plan.device if plan.gpu is None else f"{plan.device}, {plan.gpu.name}"
    lines = [
        *([] if plan.fit is None else [("fits", verdict_text(plan.fit, plan.highest.estimate))]),
        ("plan", f"{plan.class_name}, {plan.mode} on {layout.num_ranks} ranks: {layout.text}"),
        ("device", where),
        ("highest peak", f"{size_text(peak.num_bytes)} on {_ranks_at_peak(plan)}"),
        ("  when", _moment(plan)),
        *((f"  {name}", bytes_text(n)) for name, n in peak.by_category.items()),
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


def _time(plan: Plan) -> list[tuple[str, str]]:
    schedule = plan.schedule
    if schedule is None:
        return []
    lines = [("step time", step_text(schedule))]
    if plan.mfu is not None:
        flops = f"{100 * plan.mfu:.0f} % of the GPU's peak in bfloat16"
        lines.append(("  model FLOPs", flops))
    return lines


def step_text(time: _StepTime) -> str:
    """How long a step takes, and how much of it the GPU waits."""
    parts = {
        "other stages": time.bubble_seconds,
        "communication": time.exposed_seconds,
        "the host": time.idle_seconds,
    }
    waits = [f"{seconds_text(n)} for {name}" for name, n in parts.items() if n > 1e-6]
    listed = " and ".join([", ".join(waits[:-1]), *waits[-1:]] if len(waits) > 1 else waits)
    including = f", including {listed.replace(' for ', ' waiting for ', 1)}" if waits else ""
    return seconds_text(time.seconds) + including


def _ranks_at_peak(plan: Plan) -> str:
    ranks = plan.highest.ranks
    others = f", and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"rank {ranks[0]} ({plan.layout.text_of(ranks[0])}){others}"


def _moment(plan: Plan) -> str:
    peak = plan.highest.peak
    doing = {"optimizer": "in the optimizer's step", "start": "before it begins"}
    text = doing.get(peak.phase, f"in the {peak.phase} pass")
    return text + "".join(f", {word}" for word in (peak.module, peak.op) if word)


def _ranks(plan: Plan) -> list[str]:
    by_cells: dict[tuple[str, ...], list[int]] = {}  # ranks that differ by less than is shown
    for found in sorted(plan.by_ranks, key=lambda found: -found.peak_bytes):
        by_cells.setdefault(_rank_cells(found), []).extend(found.ranks)
    rows = [(_which(sorted(ranks), plan.layout), *cells) for cells, ranks in by_cells.items()]
    lines = list(padded([_RANKS_HEADER, *rows[:_MAX_ROWS]], _RANKS_HEADER[:1]))
    left = len(rows) - _MAX_ROWS
    return [*lines, f"and {left} more kinds of rank, with lower peaks"] if left > 0 else lines


def _bubble(found: RankPlan) -> str:
    """How long a stage waits for others."""
    if found.bubble_seconds is None or found.bubble_share is None:
        return ""
    return f"{seconds_text(found.bubble_seconds)}, {100 * found.bubble_share:.0f} %"


def _rank_cells(found: RankPlan) -> tuple[str, ...]:
    """What some ranks hold and send, in the columns of _RANKS_HEADER after the first."""
    most = found.most_bytes
    kinds = (bytes_text(most[name]) if most[name] else "" for name in _KINDS)
    sent = bytes_text(found.sent_bytes) if found.traffic else ""
    return *kinds, bytes_text(found.peak_bytes), sent, _bubble(found)


def _which(ranks: Sequence[int], layout: Layout) -> str:
    """Ranks with where they are in the mesh: ``all 8``, or ``0-3 (pp 0)``."""
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


def _traffic_cells(row: Traffic) -> tuple[str, ...]:
    """A row of traffic, in the columns of _TRAFFIC_HEADER."""
    size, calls = f"{row.group_size}", f"{row.num_calls:,}"
    sent = bytes_text(row.num_bytes), bytes_text(row.sent_bytes)
    return row.phase, row.collective, row.axis, size, calls, *sent
