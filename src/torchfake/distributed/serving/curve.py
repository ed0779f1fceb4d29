"""The curve of latency against throughput of a server, as SVG, in a report, and as a plotly figure.

Input: a ServingPlan. Output: figures: tokens per second of each user to the right, of each GPU
upwards, a point for each number of users. Invariant: the points are those of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchfake.distributed.serving.limits import NO_LIMITS, Limits
from torchfake.distributed.serving.offers import ServingSearch
from torchfake.distributed.serving.search_text import past_text
from torchfake.distributed.serving.serving_plan import ServingPlan
from torchfake.distributed.serving.text import gpu_text
from torchfake.inspect.figures.page import answer_in
from torchfake.inspect.figures.plotly_figures import framed, graph_objects
from torchfake.inspect.figures.svg import HALO
from torchfake.inspect.records.record import OnPage, drawn_as, figure, on_page, shown
from torchfake.inspect.records.units import (
    bytes_text,
    duration_text,
    number_text,
    price_text,
    seconds_text,
)

_WIDTH, _HEIGHT, _WIDEST = 400, 280, 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 52, 40, 46
_COLOR = "#4269d0"


class Point(NamedTuple):
    """What a number of users sees."""

    users: int
    per_user: float  # tokens per second
    per_gpu: float
    first_token_seconds: float


def points_of(found: ServingPlan) -> list[Point]:
    """The points of the curve, by the number of users."""
    return [
        Point(
            users,
            steady.tokens_per_second_per_user,
            found.per_gpu(steady),
            steady.first_token_seconds,
        )
        for users, steady in found.by_users
    ]


def _of_gpu(found: ServingPlan) -> str:
    return "of each GPU" if found.num_gpus > 1 else "of the GPU"


def _title(found: ServingPlan) -> str:
    return f"Tokens per second: {_of_gpu(found)}, and of each user"


@drawn_as.register
def _(found: ServingPlan, form: str) -> str:
    if form != "svg":
        raise TypeError(f"a server is drawn as svg, not as {form}")
    points = points_of(found)
    of_gpu = _of_gpu(found)
    parts = [*_axes(points, of_gpu), *_drawn(points, of_gpu, found.users)] if points else []
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'width="100%" style="max-width:{_WIDEST}px" font-family="system-ui, sans-serif" '
        f'font-size="12" fill="currentColor"><title>{_title(found)}</title>{"".join(parts)}</svg>'
    )


def _axes(points: list[Point], of_gpu: str) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for number in range(5):
        share = number / 4
        x, y = _LEFT + share * (right - _LEFT), bottom - share * (bottom - _TOP)
        yield (
            f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="currentColor" stroke-opacity=".15"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{share * _top(points):,.0f}</text>"
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">'
            f"{share * _farthest(points):,.0f}</text>"
        )
    yield (
        f'<text x="{_LEFT}" y="12">tokens/s {of_gpu}</text>'
        f'<text x="{right}" y="{_HEIGHT - 8}" text-anchor="end">tokens/s of each user</text>'
    )


def _drawn(points: list[Point], of_gpu: str, asked: int) -> Iterator[str]:
    """The line and its points, with labels; that of the asked number of users is larger."""
    places = [_place(point, points) for point in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{line}" fill="none" stroke="{_COLOR}" stroke-width="2"/>'
    for point, (x, y) in zip(points, places, strict=True):
        title = (
            f"{point.users:,} users: {point.per_gpu:,.0f} tokens/s {of_gpu}, "
            f"{point.per_user:,.1f} of each user, first token {point.first_token_seconds:.2f} s"
        )
        size = 6 if point.users == asked else 4
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{_COLOR}"><title>{title}</title>'
            "</circle>"
        )
    for label in labels_of(dict(zip((p.users for p in points), places, strict=True)), asked):
        look = HALO + ' font-weight="bold"' * (label.users == asked)
        x, y, anchor = label.at
        yield f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {look}>{label.text}</text>'


_NEAR, _CHARACTER = 13, 7


class Label(NamedTuple):
    """The name of a point."""

    users: int
    x: float
    y: float
    is_left: bool  # below and on the left of the point, not above and on the right

    @property
    def text(self) -> str:
        return number_text(self.users, "user")

    @property
    def at(self) -> tuple[float, float, str]:
        """Where its text is anchored, and at which end."""
        return (
            (self.x - 9, self.y + 15, "end") if self.is_left else (self.x + 9, self.y - 5, "start")
        )

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Its left, right, upper and lower end."""
        (x, y, _), width = self.at, _CHARACTER * len(self.text)
        return (x - width if self.is_left else x, x if self.is_left else x + width, y - 10, y)

    def is_clear(self, others: list[Label], places: dict[int, tuple[float, float]]) -> bool:
        """Whether it is beside the numbers of the axis and in the figure, over no other label, and
        no nearer to another point.
        """
        left, right, top, bottom = self.box
        for start, end, upper, lower in (each.box for each in others):
            if left - 6 < end and start - 6 < right and top - 6 < lower and upper - 6 < bottom:
                return False
        others_at = (place for users, place in places.items() if users != self.users)
        far = (
            math.hypot(max(left - x, x - right, 0), max(top - y, y - bottom, 0)) >= _NEAR
            for x, y in others_at
        )
        return left >= _LEFT and right <= _WIDTH and all(far)


def labels_of(places: dict[int, tuple[float, float]], asked: int) -> list[Label]:
    """The labels of points for which there is room: of the asked number of users, then of most."""
    found = list[Label]()
    for users in sorted(places, key=lambda users: (users != asked, -users)):
        sides = [Label(users, *places[users], is_left) for is_left in (False, True)]
        clear = [each for each in sides if each.is_clear(found, places)]
        found += clear[:1] or sides[: users == asked]
    return found


def _place(point: Point, points: list[Point]) -> tuple[float, float]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x = _LEFT + point.per_user / _farthest(points) * (right - _LEFT)
    return x, bottom - point.per_gpu / _top(points) * (bottom - _TOP)


def _top(points: list[Point]) -> float:
    return _round_up(max(point.per_gpu for point in points))


def _farthest(points: list[Point]) -> float:
    return _round_up(max(point.per_user for point in points))


def _round_up(value: float) -> float:
    """The next number of which a quarter is round."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(f * power for f in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if f * power >= value)


@on_page.register
def _(found: ServingPlan) -> list[OnPage]:
    blocks = shown(found)
    sections = [*_curve(found), ("Details", blocks)]
    verdict = "tight" if found.past and found.fits else ""
    cards, answer = _cards(found), answer_in(blocks)
    return [OnPage(found.class_name, answer, cards, sections, verdict, found.target)]


def _curve(found: ServingPlan, of: str = "") -> list[tuple[str, str]]:
    return [(f"{_title(found)}{of}", drawn_as(found, "svg"))] if found.by_users else []


def _cards(found: ServingPlan, limits: Limits = NO_LIMITS, within: int = 0) -> dict[str, str]:
    """The key figures of a server, and how many users it serves within limits; times that are past
    their limits are said to be.
    """
    gpu = found.server.machine.gpu.name.removeprefix("NVIDIA ")
    cards = {"GPUs": f"{found.num_gpus:,} x {gpu}"}
    if found.steady is not None:
        rate = "tokens/s on each GPU" if found.num_gpus > 1 else "tokens/s"
        past = {name: f", {past_text(n)}" for name, n in limits.missed_by(found.steady).items()}
        cards |= {
            f"first token{past.get('first token', '')}": seconds_text(
                found.steady.first_token_seconds
            ),
            f"each token{past.get('each token', '')}": seconds_text(found.steady.seconds),
            rate: f"{found.tokens_per_second_per_gpu:,.0f}",
        }
    if found.queue_seconds:
        cards["more for users that wait for memory"] = duration_text(found.queue_seconds)
    if found.memory.cache <= 0:
        missing = bytes_text(-found.memory.cache)
        cards[f"missing on {gpu_text(found)} without users"] = missing
    if within:
        cards["users within the limits"] = f"{within:,}"
    cards["users with full contexts"] = f"{found.most_users:,}"
    if not within and found.most_users_on_average != found.most_users:
        cards["users at their average length"] = f"{found.most_users_on_average:,}"
    return cards


@on_page.register
def _(found: ServingSearch) -> list[OnPage]:
    lines, *ways = shown(found)
    shown_first = found.answer or found.closest
    plan = shown_first.plan
    name, priced = "price/hour", shown_first.hourly
    if found.users is None:
        name, priced = "price/1M", shown_first.price
    price = {} if priced is None else {name: price_text(priced)}
    within = shown_first.most_users if found.limits != NO_LIMITS else 0
    cards = _cards(plan, found.limits, within)
    nearest = "" if found.fits else ", nearest of those tried"
    cards = {f"{name}{nearest * (name == 'GPUs')}": each for name, each in cards.items()}
    cards = {**price, **cards, "ways tried": f"{len(found.offers):,}"}
    curve = _curve(plan, f", on {shown_first.num_gpus} x {shown_first.gpu}{nearest}")
    sections = [*[("Ways to serve", ways)] * bool(ways), ("Details", [lines]), *curve]
    is_tight = plan.past or plan.verdict == "tight" or found.limits.may_be_missed_by(plan)
    verdict = "no" if not found.fits else "tight" if is_tight else "yes"
    return [OnPage(plan.class_name, lines.rows[0], cards, sections, verdict, found.target)]


@figure.register
def _(found: ServingPlan) -> Any:
    points = points_of(found)
    trace = graph_objects().Scatter(
        x=[point.per_user for point in points],
        y=[point.per_gpu for point in points],
        text=[f"{point.users:,}" for point in points],
        customdata=[point.first_token_seconds for point in points],
        mode="lines+markers+text",
        textposition="top right",
        hovertemplate=f"%{{text}} users<br>%{{y:,.0f}} tokens/s {_of_gpu(found)}"
        "<br>%{x:,.1f} of each user"
        "<br>first token %{customdata:.2f} s<extra></extra>",
    )
    made = framed([trace], _title(found), height=420, svg=drawn_as(found, "svg"))
    made.update_layout(
        xaxis={"title": "tokens/s of each user", "rangemode": "tozero"},
        yaxis={"title": f"tokens/s {_of_gpu(found)}", "rangemode": "tozero"},
    )
    return made
