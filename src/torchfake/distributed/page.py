"""What a page shows of plans: the mesh, the memory of each rank, the step over time, the code.

Input: a Plan, a TargetPlan or a Search. Output: headings and HTML. Invariant: kinds of rank are
drawn in the order of their first ranks; text is escaped; tables are those of the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from torchfake.distributed.plan import Plan
from torchfake.distributed.search.search import Search
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.distributed.target_plans.text import rate_text
from torchfake.distributed.text import ranks_text
from torchfake.inspect.figures.html import COLORS, escape
from torchfake.inspect.figures.page import answer_in, key_figures, memory_sections
from torchfake.inspect.records.record import OnPage, on_page, shown
from torchfake.inspect.records.units import bytes_text, seconds_text
from torchfake.inspect.timing.collectives import gpus_per_node
from torchfake.inspect.timing.schedule import Schedule

MAX_RANKS, MAX_KINDS = 256, 12
"""The most ranks that are drawn, and the most kinds of them."""

_STEPS = 1200
"""The parts of a step that are drawn in one colour each."""

_PHASES = {"forward": "#5a93cc", "backward": "#2457a0", "optimizer": "#a463f2"}
_BEYOND, _END = "reserved beyond the peak", "end of the GPU's memory"
_COLORS = {**COLORS, _BEYOND: "#c9ced6", _END: "var(--ink)"}

_AXES = ("#efb118", "#3ca951", "#ff8ab7", "#9c6b4e", "#ff725c")
"""The colours of messages along each axis of the mesh."""


@on_page.register
def _(found: Plan) -> list[OnPage]:
    return [_on_page(found, found)]


@on_page.register
def _(found: TargetPlan) -> list[OnPage]:
    return [_on_page(found, found.plan, found.code)]


@on_page.register
def _(found: Search) -> list[OnPage]:
    answers, layouts, *_ = shown(found)
    tried = {"layouts tried": f"{len(found.rows):,}"}
    section = ("Layouts", [*[layouts] * bool(layouts.rows), answers])
    if found.fastest is None:
        return [OnPage(found.target, answers.rows[0], tried, [section], "no")]
    (page,) = on_page(found.fastest)
    return [
        page._replace(
            answer=answers.rows[0],
            cards=page.cards | tried,
            sections=[section, *page.sections],
            verdict=found.verdict,
        )
    ]


def _on_page(found: Any, plan: Plan, code: str = "") -> OnPage:
    blocks = shown(found)
    cards = key_figures(plan, plan.fit)
    if "GPU" in cards and plan.layout.num_ranks > 1:
        cards = {"GPUs": f"{plan.layout.num_ranks:,} x {cards.pop('GPU')}", **cards}
    has_rate = plan.step_seconds is not None and plan.fits is not False
    if isinstance(found, TargetPlan) and has_rate:
        rate, _, unit = rate_text(found).partition(" ")
        cards[unit] = rate
    memory = memory_sections(plan.estimate, plan.fit)
    return OnPage(
        plan.class_name,
        answer_in(blocks),
        cards,
        [*_sections(plan), ("Plan", blocks), *memory, *_code(plan, code)],
        target=found.target if isinstance(found, TargetPlan) else "",
    )


def _sections(plan: Plan) -> Iterator[tuple[str, Any]]:
    """The figures of a plan, each with its heading."""
    yield "Ranks", _mesh(plan) + _memory(plan)
    if any(schedule is not None for schedule in plan.schedules):
        yield "Computation and communication over time", _timeline(plan)


def _code(plan: Plan, code: str) -> Iterator[tuple[str, Any]]:
    if code:
        text = f'<pre tabindex="0"><code>{escape(code.rstrip())}</code></pre>'
        yield f"Code of this layout{', which does not fit' * (plan.fits is False)}", text


def _mesh(plan: Plan) -> str:
    """The ranks as a grid, a row for each node, each filled up to its peak."""
    layout, limit = plan.layout, _limit(plan)
    per_node = gpus_per_node(plan.links)
    pairs = zip(plan.by_ranks, plan.reserved_by_ranks, strict=True)
    reserved = {rank: size for kind, size in pairs for rank in kind.ranks}
    shown = range(min(layout.num_ranks, MAX_RANKS))
    rows = []
    for first in shown[::per_node]:
        cells = "".join(
            _cell(rank, layout.text_of(rank), reserved[rank], limit)
            for rank in shown[first : first + per_node]
        )
        rows.append(f'<tr><th scope="row">node {first // per_node}</th>{cells}</tr>')
    left = layout.num_ranks - len(shown)
    more = f'<p class="dim">and {left:,} more ranks in {left // per_node:,} nodes</p>' * (left > 0)
    full = f"filled up to what is reserved, of {bytes_text(limit)} of memory"
    return (
        f"<p>{layout.num_ranks:,} ranks: {escape(layout.text)}; {full}</p>"
        f'<div class="mesh" tabindex="0"><table>{"".join(rows)}</table></div>{more}'
    )


def _cell(rank: int, place: str, reserved: int, limit: int) -> str:
    share = 100 * min(reserved / max(limit, 1), 1)
    about = escape(f"rank {rank}: {place}; {bytes_text(reserved)} reserved")
    lines = escape(place.replace(", ", "\n"))
    css = ' class="over"' * (reserved > limit)
    return f'<td{css} style="--share:{share:.0f}%" title="{about}"><b>{rank}</b>{lines}</td>'


def _limit(plan: Plan) -> int:
    """The memory that a full rank would hold."""
    return int(plan.peak_bytes if plan.fit is None else plan.fit.usable_bytes)


def _memory(plan: Plan) -> str:
    """A bar for each kind of rank: the categories that it holds at its peak, what its allocator
    reserves beyond, and where the memory of the GPU ends.
    """
    limit = _limit(plan)
    scale = max(limit, *plan.reserved_by_ranks, 1)
    pairs = zip(plan.by_ranks, plan.reserved_by_ranks, strict=True)
    rows, used = [], dict[str, None]()
    for kind, reserved in itertools.islice(pairs, MAX_KINDS):
        held = {name: n for name, n in kind.peak.by_category.items() if n > kind.peak_bytes / 500}
        if reserved > kind.peak_bytes:
            held[_BEYOND] = reserved - kind.peak_bytes
        used |= dict.fromkeys(held)
        parts = "".join(
            f'<i style="width:{100 * n / scale:.2f}%;background:{_COLORS[name]}" '
            f'title="{escape(name)} {bytes_text(n)}"></i>'
            for name, n in held.items()
        )
        if reserved > limit:
            left = 100 * limit / scale
            parts += f'<i class="limit" style="left:{left:.2f}%" title="the GPU ends here"></i>'
            used[_END] = None
        number = f"{bytes_text(kind.peak_bytes)}, {bytes_text(reserved)} reserved"
        rows.append((_ranks(kind.ranks), parts, number))
    return f"<h3>Memory at the peak of each rank</h3>{_bars(rows)}{_legend(used, _COLORS)}"


def _timeline(plan: Plan) -> str:
    """Two lanes for each kind of rank: when it computes, and when it sends or receives."""
    pairs = zip(plan.by_ranks[:MAX_KINDS], plan.schedules, strict=False)
    known = [(kind, schedule) for kind, schedule in pairs if schedule is not None]
    seconds = max(schedule.seconds for _, schedule in known)
    axes = {m.axis: None for _, s in known for c in s.commands if (m := c.message) is not None}
    colors = dict(zip(axes, _AXES * len(axes), strict=False))
    rows = []
    for kind, schedule in known:
        busy = schedule.computing_seconds / seconds
        rows.append(
            (
                _ranks(kind.ranks),
                _lane(schedule, seconds, {}),
                f"computes {_percent(busy)}",
            )
        )
        if colors:
            exposed = schedule.exposed_seconds / seconds
            rows.append(
                ("messages", _lane(schedule, seconds, colors), f"exposed {_percent(exposed)}")
            )
    run = (
        "" if plan.num_run == plan.num_all else f", {plan.num_run} of {plan.num_all} micro-batches"
    )
    axis = f'<div class="axis"><span>0</span><span>{seconds_text(seconds)}{run}</span></div>'
    named = _PHASES | {f"messages along {axis}": color for axis, color in colors.items()}
    return _bars(rows, axis) + _legend(named, named)


def _percent(share: float) -> str:
    return "<1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def _lane(schedule: Schedule, seconds: float, axes: dict[str, str]) -> str:
    """What runs in each part of the step: kernels, or if `axes` are given, messages."""
    lane = np.zeros(_STEPS, dtype=np.int64)
    colors = list((axes or _PHASES).values())
    names = list(axes or _PHASES)
    for command, begin, end in zip(schedule.commands, schedule.begins, schedule.ends, strict=True):
        of = command.message.axis if command.message is not None else command.place.phase
        if (command.message is not None) == bool(axes) and of in names:
            first = int(_STEPS * begin / seconds)
            lane[first : max(int(_STEPS * end / seconds), first + 1)] = 1 + names.index(of)
    edges = [0, *(np.flatnonzero(np.diff(lane)) + 1).tolist(), _STEPS]
    paths: dict[int, str] = {}
    for first, end in itertools.pairwise(edges):
        number = int(lane[first])
        paths[number] = paths.get(number, "") + f"M{first} 0h{end - first}v1H{first}z"
    drawn = "".join(
        f'<path d="{path}" fill="{colors[n - 1]}"><title>{escape(names[n - 1])}</title></path>'
        for n, path in paths.items()
        if n
    )
    return (
        f'<svg viewBox="0 0 {_STEPS} 1" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'
    )


def _bars(rows: Sequence[tuple[str, str, str]], last: str = "") -> str:
    """Rows of a name, a bar and a number."""
    lines = (
        f'<span>{escape(name)}</span><div class="bars">{bar}</div><span>{escape(value)}</span>'
        for name, bar, value in rows
    )
    return f'<div class="ranks">{"".join(lines)}{last}</div>'


def _legend(names: Any, colors: dict[str, str]) -> str:
    items = (f'<span><i style="background:{colors[n]}"></i>{escape(n)}</span>' for n in names)
    return f'<div class="legend">{"".join(items)}</div>'


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"
