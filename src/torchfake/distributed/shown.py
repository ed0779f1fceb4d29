"""A plan as text.

Enters: a Plan. Leaves: strings, as :mod:`torchfake.inspect.text` has them of other records.
Invariant: what a terminal and a notebook show is this text.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchfake.distributed.ledger import Traffic
from torchfake.distributed.plan import Plan
from torchfake.distributed.rank_plan import RankPlan
from torchfake.inspect.text import padded, plain, plain_lines
from torchfake.inspect.units import bytes_text

SHOWN_KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer state": "optimizer",
    "activations": "activations",
    "unsharded parameters": "unsharded",
    "communication": "communication",
}
"""Kinds of bytes that are columns, and their headers."""

RANKS_HEADER = ("ranks", *SHOWN_KINDS.values(), "peak", "sent")
TRAFFIC_HEADER = ("phase", "collective", "axis", "ranks", "calls", "payload", "sent")

MAX_ROWS = 12
"""Rows of ranks that are shown, those with the highest peaks."""


@plain.register
def _(found: Plan, *, depth: int | None = None) -> str:
    parts = [plain_lines(plan_lines(found)), "\n".join(_ranks(found))]
    if found.traffic:
        table = [TRAFFIC_HEADER, *map(traffic_cells, found.traffic)]
        parts.append("\n".join(padded(table, TRAFFIC_HEADER[:3])))
    return "\n\n".join(parts)


def plan_lines(plan: Plan) -> list[tuple[str, str]]:
    """What a plan says of the whole, each a name and what is to be said."""
    layout, peak = plan.layout, plan.highest.peak
    mesh = " x ".join(f"{axis} {n}" for axis, n in zip(layout.axes, layout.shape, strict=True))
    where = plan.device if plan.gpu is None else f"{plan.device}, {plan.gpu.name}"
    lines = [
        ("plan", f"{plan.class_name}, {plan.mode} on {layout.num_ranks} ranks: {mesh}"),
        ("device", where),
        ("highest peak", f"{bytes_text(peak.num_bytes)} on {_whose(plan)}"),
        ("  when", _when(plan)),
        *((f"  {name}", bytes_text(n)) for name, n in peak.by_category.items()),
    ]
    elsewhere = plan.highest.estimate.elsewhere
    lines += [(f"on {name}", bytes_text(n)) for name, n in elsewhere.items() if n]
    if plan.fit is not None:
        spare = bytes_text(abs(plan.fit.headroom_bytes))
        said = f"yes, with {spare} to spare" if plan.fit.fits else f"no, {spare} are missing"
        usable = bytes_text(plan.fit.total_bytes - plan.fit.reserved_bytes)
        lines.append(("fits", f"{said}, of {usable} for tensors"))
    return lines


def _whose(plan: Plan) -> str:
    ranks = plan.highest.ranks
    others = f", and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"rank {ranks[0]} ({plan.layout.text_of(ranks[0])}){others}"


def _when(plan: Plan) -> str:
    peak = plan.highest.peak
    doing = {"optimizer": "in the optimizer's step", "start": "before it begins"}
    text = doing.get(peak.phase, f"going {peak.phase}")
    return text + "".join(f", {word}" for word in (peak.module, peak.op) if word)


def _ranks(plan: Plan) -> list[str]:
    rows = sorted(plan.by_ranks, key=lambda found: -found.peak_bytes)
    lines = list(padded([RANKS_HEADER, *map(rank_cells, rows[:MAX_ROWS])], RANKS_HEADER[:1]))
    left = len(rows) - MAX_ROWS
    return [*lines, f"and {left} more kinds of rank, with lower peaks"] if left > 0 else lines


def rank_cells(found: RankPlan) -> tuple[str, ...]:
    """What some ranks hold as the columns of RANKS_HEADER."""
    most = found.most_bytes
    kinds = (bytes_text(most[name]) if most[name] else "" for name in SHOWN_KINDS)
    sent = bytes_text(found.sent_bytes) if found.traffic else ""
    return ranks_text(found.ranks), *kinds, bytes_text(found.peak_bytes), sent


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in order, those that follow each other as one: ``0-3, 6``; long lists cut.

    >>> ranks_text([0, 1, 2, 3, 6]), ranks_text(range(0, 100, 2))
    ('0-3, 6', '0, 2, 4, ... (50 ranks)')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:3], f"... ({len(ranks)} ranks)"])


def traffic_cells(row: Traffic) -> tuple[str, ...]:
    """A row of traffic as the columns of TRAFFIC_HEADER."""
    size, calls = f"{row.group_size}", f"{row.num_calls:,}"
    sent = bytes_text(row.num_bytes), bytes_text(row.sent_bytes)
    return row.phase, row.collective, row.axis, size, calls, *sent
