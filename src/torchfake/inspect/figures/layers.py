"""A layered layout: boxes in rows, each below its sources, with lines around all boxes.

Input: the sizes of boxes, and the wires between them. Output: the positions of boxes, and the
points of each line. Invariant: boxes do not overlap, and a line passes a row at a place of its own.

The steps are those of Sugiyama, Tagawa and Toda (1981): rows by the longest path; an order in each
row with few crossings; positions near those of neighbours. A line that passes a row has a place
(dummy node) there, which all lines from the same box share.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

GAP = 18.0
"""The gap between boxes of a row, in pixels."""

LINE_GAP = 10.0
ROW_GAP = 30.0
SWEEPS = 12

Point = tuple[float, float]


class Box(NamedTuple):
    """A box to be placed."""

    width: float
    height: float
    is_first: bool = False  # placed in the first row, together only with other first boxes
    is_last: bool = False  # placed in the last row, together only with other last boxes


class Wire(NamedTuple):
    """A line from one box to another; its ends have offsets from the middles of the boxes."""

    source: int
    target: int
    source_offset: float = 0.0
    target_offset: float = 0.0


class Layout(NamedTuple):
    """The positions of all boxes and wires."""

    corners: list[Point]  # the upper left corner of each box
    routes: list[list[Point]]  # the points of each wire: its ends, and where it passes rows
    width: float
    height: float


def layout(boxes: Sequence[Box], wires: Sequence[Wire]) -> Layout:
    """Lay out boxes; each wire must go from a box to a later one in the sequence."""
    if not boxes:
        return Layout([], [], 0.0, 0.0)
    return _Layers(boxes, wires).run()


class _Layers:
    def __init__(self, boxes: Sequence[Box], wires: Sequence[Wire]) -> None:
        self.wires = wires
        self.widths = [box.width for box in boxes]
        self.heights = [box.height for box in boxes]
        self.num_boxes = len(boxes)
        self.row_of = _rows(boxes, wires)
        self.passing: dict[tuple[int, int], int] = {}  # dummy node by source and row
        self.links: dict[tuple[int, int], tuple[float, float]] = {}  # between neighbouring rows
        for wire in wires:
            self._add_passing(wire)
        self.rows: list[list[int]] = [[] for _ in range(1 + max(self.row_of))]
        for number, row in enumerate(self.row_of):
            self.rows[row].append(number)
        self.above: list[list[int]] = [[] for _ in self.row_of]
        self.below: list[list[int]] = [[] for _ in self.row_of]
        for upper, lower in self.links:
            self.below[upper].append(lower)
            self.above[lower].append(upper)

    def _add_passing(self, wire: Wire) -> None:
        before, offset = wire.source, wire.source_offset
        for row in range(self.row_of[wire.source] + 1, self.row_of[wire.target]):
            number = self.passing.setdefault((wire.source, row), len(self.row_of))
            if number == len(self.row_of):
                self.row_of.append(row)
                self.widths.append(0.0)
                self.heights.append(0.0)
            self.links[before, number] = offset, 0.0
            before, offset = number, 0.0
        self.links[before, wire.target] = offset, wire.target_offset

    def run(self) -> Layout:
        self._order()
        x = self._positions()
        left = min(x[i] - self.widths[i] / 2 for i in range(len(x)))
        x = [value - left for value in x]
        tops, height = self._tops()
        corners = [(x[i] - self.widths[i] / 2, self._top(i, tops)) for i in range(self.num_boxes)]
        width = max(x[i] + self.widths[i] / 2 for i in range(len(x)))
        return Layout(corners, [self._route(w, x, tops) for w in self.wires], width, height)

    def _order(self) -> None:
        """Sort the rows by the mean place of neighbours; keep the order with fewest crossings."""
        best, fewest = [list(row) for row in self.rows], self._num_crossings()
        for sweep in range(SWEEPS):
            if not fewest:
                break
            is_down = sweep % 2 == 0
            for row in self.rows if is_down else reversed(self.rows):
                self._sort(row, self.above if is_down else self.below)
            found = self._num_crossings()
            if found < fewest:
                best, fewest = [list(row) for row in self.rows], found
        self.rows = best

    def _sort(self, row: list[int], neighbours: list[list[int]]) -> None:
        place = {number: i for line in self.rows for i, number in enumerate(line)}
        keys = {
            number: sum(place[n] for n in neighbours[number]) / len(neighbours[number])
            if neighbours[number]
            else float(place[number])
            for number in row
        }
        row.sort(key=lambda number: keys[number])

    def _num_crossings(self) -> int:
        place = {number: i for row in self.rows for i, number in enumerate(row)}
        total = 0
        for row in self.rows:
            ends: list[int] = []
            for number in row:
                targets = sorted(place[n] for n in self.below[number])
                total += sum(len(ends) - bisect_left(ends, target + 1) for target in targets)
                for target in targets:
                    insort(ends, target)
        return total

    def _positions(self) -> list[float]:
        """The middle of each box and dummy node, near those of its neighbours."""
        x = [0.0] * len(self.row_of)
        for row in self.rows:
            for number, offset in zip(row, self._offsets(row), strict=True):
                x[number] = offset
        for sweep in range(4 * SWEEPS):
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                self._align(row, x)
        return x

    def _align(self, row: list[int], x: list[float]) -> None:
        """Move the boxes of a row to where their lines are straightest."""
        wanted, weights = [], []
        for number in row:
            pulls = [(self._pull(n, number), n) for n in self.above[number] + self.below[number]]
            weight = sum(pull for pull, _ in pulls)
            total = sum(pull * (x[n] + self._shift(n, number)) for pull, n in pulls)
            wanted.append(total / weight if pulls else x[number])
            weights.append(weight if pulls else 0.1)
        offsets = self._offsets(row)
        places = _ascending([w - o for w, o in zip(wanted, offsets, strict=True)], weights)
        for number, place, offset in zip(row, places, offsets, strict=True):
            x[number] = place + offset

    def _pull(self, a: int, b: int) -> float:
        """The weight of a straight line between two nodes; largest between dummy nodes."""
        return (1.0, 2.0, 8.0)[(a >= self.num_boxes) + (b >= self.num_boxes)]

    def _shift(self, neighbour: int, number: int) -> float:
        """The distance of a node's middle from a neighbour's if the line between is straight."""
        if (neighbour, number) in self.links:
            from_upper, from_lower = self.links[neighbour, number]
            return from_upper - from_lower
        from_upper, from_lower = self.links[number, neighbour]
        return from_lower - from_upper

    def _offsets(self, row: list[int]) -> list[float]:
        """The middles of the nodes of a row if they are as close together as possible."""
        offsets, right, before = [], 0.0, -1
        for number in row:
            is_line = number >= self.num_boxes and (before >= self.num_boxes or before < 0)
            right += 0.0 if before < 0 else LINE_GAP if is_line else GAP
            offsets.append(right + self.widths[number] / 2)
            right, before = right + self.widths[number], number
        return offsets

    def _tops(self) -> tuple[list[tuple[float, float]], float]:
        """The upper and lower end of each row, and the height of all rows."""
        found, y = [], 0.0
        for row in self.rows:
            height = max((self.heights[number] for number in row), default=0.0)
            found.append((y, y + height))
            y += height + ROW_GAP
        return found, y - ROW_GAP

    def _top(self, number: int, tops: list[tuple[float, float]]) -> float:
        upper, lower = tops[self.row_of[number]]
        return (upper + lower - self.heights[number]) / 2

    def _route(self, wire: Wire, x: list[float], tops: list[tuple[float, float]]) -> list[Point]:
        first, last = self.row_of[wire.source], self.row_of[wire.target]
        start, end = x[wire.source] + wire.source_offset, x[wire.target] + wire.target_offset
        points = [(start, self._top(wire.source, tops) + self.heights[wire.source])]
        points.append((start, tops[first][1]))
        for row in range(first + 1, last):
            at = x[self.passing[wire.source, row]]
            points += [(at, tops[row][0]), (at, tops[row][1])]
        return [*points, (end, tops[last][0]), (end, self._top(wire.target, tops))]


def _rows(boxes: Sequence[Box], wires: Iterable[Wire]) -> list[int]:
    """The row of each box: below its sources; a box without sources, just above its targets."""
    sources: list[list[int]] = [[] for _ in boxes]
    targets: list[list[int]] = [[] for _ in boxes]
    for wire in wires:
        sources[wire.target].append(wire.source)
        targets[wire.source].append(wire.target)
    least = int(any(box.is_first for box in boxes))
    rows = [0] * len(boxes)
    for number, box in enumerate(boxes):
        rows[number] = 0 if box.is_first else max([least, *(rows[s] + 1 for s in sources[number])])
    for number in reversed(range(len(boxes))):
        if targets[number] and not any(not boxes[s].is_first for s in sources[number]):
            if not boxes[number].is_first and not sources[number]:
                rows[number] = max(least, min(rows[t] for t in targets[number]) - 1)
    last = max((row for row, box in zip(rows, boxes, strict=True) if not box.is_last), default=-1)
    return [last + 1 if box.is_last else row for row, box in zip(rows, boxes, strict=True)]


def _ascending(wanted: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Isotonic regression: the nondecreasing values nearest to `wanted`, pooling neighbours."""
    pools: list[tuple[float, float, int]] = []  # value, weight, number of members
    for value, weight in zip(wanted, weights, strict=True):
        count = 1
        while pools and pools[-1][0] > value:
            other, more, num = pools.pop()
            value = (value * weight + other * more) / (weight + more)
            weight, count = weight + more, count + num
        pools.append((value, weight, count))
    return [value for value, _, count in pools for _ in range(count)]
