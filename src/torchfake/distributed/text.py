"""A plan as rows: the verdict, what each rank holds and sends.

Input: a Plan. Output: blocks of rows, see ``inspect/show/rows``; text. Invariant: ranks that look
equal share a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torchfake.distributed.layout import Layout
from torchfake.distributed.plan import Plan
from torchfake.distributed.ranks.rank_plan import RankPlan
from torchfake.errors import listed
from torchfake.inspect.arithmetic.uncounted import uncounted_line, untimed_line
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.units import bytes_text, compared_bytes, seconds_text
from torchfake.inspect.show.rows import Block, Column, Line, Row, table
from torchfake.inspect.show.step_lines import (
    elsewhere_lines,
    phase_text,
    step_block,
)
from torchfake.inspect.show.step_time import (
    compared_as,
    faster_lines,
    kind_of,
    room_text,
    seconds_in_short,
)
from torchfake.inspect.show.verdict import batch_of_rank, counted_text, verdict_text
from torchfake.inspect.timing.collectives import network_gbits, network_text
from torchfake.inspect.timing.compared import ON_SUCH_NETWORKS, error_in_short, error_text
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


def _held(name: str) -> Callable[[RankPlan], int | None]:
    return lambda found: found.peak.by_category.get(name) or None


def _others(found: RankPlan) -> int | None:
    return found.peak_bytes - sum(found.peak.by_category.get(n, 0) for n in _CATEGORIES) or None


def _bubble(found: RankPlan) -> str:
    """The time that a pipeline stage waits for others, as text."""
    if found.bubble_seconds is None or found.bubble_share is None:
        return ""
    return f"{seconds_text(found.bubble_seconds)}, {100 * found.bubble_share:.0f} %"


_RANKS_COLUMNS = (
    Column("ranks", lambda found: ""),  # of all that look alike
    *(Column(s, _held(n), bytes_text, need=_NEED.get(s, 8)) for n, s in _CATEGORIES.items()),
    Column("others", _others, bytes_text, need=9),
    Column("peak", "peak_bytes", bytes_text),
    Column("sent", lambda found: found.sent_bytes if found.traffic else None, bytes_text, need=1),
    Column("bubble", _bubble, str, need=2),
)
_TRAFFIC_COLUMNS = (
    Column("phase", "phase"),
    Column("collective", "collective"),
    Column("axis", "axis", need=1),
    Column("group size", "group_size", str, need=4),
    Column("calls", "num_calls", "{:,}".format, need=3),
    Column("payload", "num_bytes", bytes_text, need=2),
    Column("sent", "sent_bytes", bytes_text),
)

_MAX_ROWS = 12
"""The most rows of ranks that are shown; ranks with the highest peaks are shown first."""


@shown.register
def _(found: Plan, *, depth: int | None = None) -> list[Block]:
    flops = ("  model FLOPs", mfu_text(found))
    error = ("  error", plan_error_text(found))
    time = ("step time", step_text(found)), error, network_line(found), *faster_in(found), flops
    return plan_blocks(found, [verdict_on_plan(found), *plan_lines(found, time)])


def mfu_text(plan: Plan) -> str:
    """The MFU, and the peak of which it is a share; "" if it is not known."""
    return "" if plan.mfu is None else f"{100 * plan.mfu:.0f} % of {plan.mfu_of}"


def faster_in(plan: Plan) -> Iterator[Line]:
    """The line about matrix products without tensor cores, on the slowest rank."""
    if plan.schedule is not None and plan.gpu is not None:
        yield from faster_lines(plan.schedule, plan.gpu, plan.num_all / plan.num_run)


def plan_blocks(found: Plan, lines: Iterable[Line]) -> list[Block]:
    """The lines about a plan, the tables of the memory and of the traffic of each rank."""
    traffic = [table(found.traffic, _TRAFFIC_COLUMNS)] if found.traffic else []
    return [step_block(found.peak, lines), _ranks(found), *traffic]


_MENTIONED_SHARE = 0.01
"""CPU memory is mentioned in the first line from this share of a GPU's memory on."""


def verdict_on_plan(
    plan: Plan, batch: str | None = None, precision: str | None = None, trained: str = ""
) -> Line:
    """The line that says whether the model fits; on a CPU it says nothing.

    Args:
        plan: the plan.
        batch: the batch of all ranks, as text; by default that of a rank.
        precision: in what is computed, as text; by default it is not said.
        trained: what is trained, as text, if that is not the whole model.
    """
    if plan.fit is None:
        return "fits", ""
    estimate, held = plan.estimate, plan.estimate.counted.dtype
    precision = precision or (None if held is None else f"{held} parameters")
    counted = counted_text(estimate, batch or batch_of_rank(estimate), precision, trained)
    if plan.cpu_bytes > _MENTIONED_SHARE * plan.fit.total_bytes:
        counted += f"; with {bytes_text(plan.cpu_bytes)} of CPU memory per rank"
    if plan.sends_nothing:
        counted += f"; {plan.layout.num_ranks:,} models of their own: the ranks send nothing"
    is_quantized = not estimate.counted.other_format
    time, num_ranks = time_in_short(plan), plan.layout.num_ranks
    return "fits", verdict_text(plan.fit, counted, time, num_ranks, is_quantized=is_quantized)


def time_in_short(plan: Plan) -> str:
    """The time of a step and its error, or the least time that is known; "" if none is."""
    seconds, each = plan.step_seconds_at_least, "step" if plan.mode == "training" else "pass"
    if seconds is None:
        return ""
    compared = compared_as(plan.mode, plan.schedule)
    error = error_in_short(plan.gpu, _kind_of(plan), **compared)
    if plan.network_gbits is not None:
        error += f", with {plan.network_gbits:g} Gb/s of network for each GPU"
    return seconds_in_short(seconds, each, error, plan.is_lower_bound)


def plan_error_text(plan: Plan) -> str:
    """The error of times of such plans; "" without a time, and of a lower bound."""
    if plan.step_seconds is None:
        return ""
    return error_text(plan.gpu, _kind_of(plan), **compared_as(plan.mode, plan.schedule))


def network_line(plan: Plan) -> Line:
    """The network between nodes, which nobody may have named."""
    if plan.network_gbits is None or plan.time is None:
        return "  network", ""
    return "  network", network_text(plan.links)


def _kind_of(plan: Plan) -> str:
    """The kind of model, by the inputs of rank 0, which is in the first stage of a pipeline; of
    plans on another network than those that were compared, none that was.
    """
    is_usual = plan.network_gbits in (None, network_gbits(None))
    return kind_of(plan.by_ranks[0].estimate) if is_usual else ON_SUCH_NETWORKS


def plan_lines(plan: Plan, time: Iterable[Line] = ()) -> Iterator[Line]:
    """The lines above the tables and after the verdict; `time` are those about the time."""
    layout, peak, estimate = plan.layout, plan.peak, plan.estimate
    does = f"{estimate.counted.does} on {layout.num_ranks} ranks: {layout.text}"
    yield "plan", f"{plan.class_name}, {does}"
    yield "device", plan.device if plan.gpu is None else f"{plan.device}, {plan.gpu.name}"
    size = (bytes_text if plan.gpu is None else compared_bytes)(peak.num_bytes)
    ranks = plan.highest.ranks
    others = f", and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    yield "highest peak", f"{size} on rank {ranks[0]} ({layout.text_of(ranks[0])}){others}"
    module = peak.module.replace("._checkpoint_wrapped_module", "")
    yield "  when", ", ".join(filter(None, (phase_text(peak.phase), module, peak.op)))
    yield from _categories(plan.highest)
    if plan.peak_reserved_bytes is not None:
        yield "reserved", compared_bytes(plan.peak_reserved_bytes)
    yield from time
    yield from (uncounted_line(plan.uncounted), untimed_line(plan.untimed))
    yield from elsewhere_lines(estimate)
    yield "left out", estimate.left_out
    yield from (("note", note) for note in plan.notes)


def _categories(found: RankPlan) -> Iterator[Line]:
    """The bytes of each category at the peak, and the highest at another moment."""
    at_peak = found.peak.by_category
    for name in {**at_peak, **found.most_bytes}:
        most = found.most_bytes.get(name, at_peak.get(name, 0))
        texts = bytes_text(at_peak.get(name, 0)), bytes_text(most)
        if most:
            yield f"  {name}", ", at another moment ".join(dict.fromkeys(texts))


def step_text(plan: Plan) -> str:
    """The time of a step, and the part of it in which the GPU waits; or why it is not known."""
    time = plan.time
    if time is None:
        return why_untimed(plan.gpu)
    parts = {
        "other stages": time.bubble_seconds,
        "communication": time.exposed_seconds,
        "the host": time.idle_seconds,
    }
    waits = [f"{seconds_text(n)} for {name}" for name, n in parts.items() if n > 1e-6]
    waiting = listed(waits, "and").replace(" for ", " waiting for ", 1)
    including = f", including {waiting}" if waits else ""
    seconds = "at least " * plan.is_lower_bound + seconds_text(time.seconds)
    return seconds + room_text(plan.fit) + including


def _ranks(plan: Plan) -> Block:
    found = sorted(plan.by_ranks, key=lambda found: -found.peak_bytes)
    alike: dict[tuple[str, ...], tuple[Row, list[int]]] = {}  # they differ by less than is shown
    for each, row in zip(found, table(found, _RANKS_COLUMNS).rows, strict=True):
        pairs = zip(_RANKS_COLUMNS[1:], row.values, strict=True)
        texts = tuple(column.text_of(value) for column, value in pairs)
        alike.setdefault(texts, (row, []))[1].extend(each.ranks)
    rows = [row._replace(name=_which(sorted(ranks), plan.layout)) for row, ranks in alike.values()]
    left = len(rows) - _MAX_ROWS
    note = f"and {left} more kinds of rank, with lower peaks" if left > 0 else ""
    return Block(rows[:_MAX_ROWS], _RANKS_COLUMNS, note=note)


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
            places.append(f"{axis} {ranks_text(found)}")
    return ranks_text(ranks) + (f" ({', '.join(places)})" if places else "")


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in order, consecutive ones as a range: ``0-3, 6``; long lists are truncated.

    >>> ranks_text([0, 1, 2, 3, 6]), ranks_text(range(0, 100, 2))
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
