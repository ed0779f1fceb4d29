"""Folds a recording at a depth into a graph of places, identical repetitions into one place.

Input: a recording. Output: a tree of places, and the links between them. Invariant: every call and
function that is shown has exactly one place, which identical repetitions share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from torchfake.inspect.dataflow.links import see
from torchfake.inspect.dataflow.recording import OUTSIDE, ROOT, Read, Recording
from torchfake.inspect.dataflow.repeats import Run, runs_in
from torchfake.inspect.dataflow.signatures import Item, Signatures, items_by_scope


class Place(NamedTuple):
    """A box, a frame around boxes, or a small node, for one item or identical ones."""

    number: int
    parent: int | None
    items: list[Item]  # the items that it stands for; empty for a repeated stretch
    repeat: int  # the number of repetitions in the parent
    is_open: bool  # whether it is a frame


class Link(NamedTuple):
    """The tensors that flow from one place to another."""

    source: int
    target: int
    to_next: bool  # whether it leads from one repetition to a later one
    tensors: dict[int, Read]  # by the tensor's id


class Folded(NamedTuple):
    """The places and links that are shown at a depth."""

    places: list[Place]
    links: list[Link]


Marks = tuple[tuple[int, int], ...]
"""The repetitions that an item is in: pairs of a place's number and a repetition of the place."""

Slot = list[tuple[Item, Marks]]
"""Corresponding items of identical stretches, which share a place."""


class _Stretch(NamedTuple):
    """A sequence of items in one repetition of each surrounding frame."""

    items: list[Item]
    marks: Marks


class Folder:
    """Folds one recording at any depth."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.items = items_by_scope(recording)
        self.signatures = Signatures(recording, self.items)
        self.levels: list[int] = []
        for call in recording.calls:
            self.levels.append(0 if call.scope == OUTSIDE else 1 + self.levels[call.scope])

    @property
    def max_depth(self) -> int:
        """The depth at which all calls are shown."""
        return max(1, *self.levels)

    def at(self, depth: int, functions: str = "joining", fold: bool = True) -> Folded:
        """The places and links that are shown when calls are opened down to `depth`."""
        opened = {
            number
            for number, level in enumerate(self.levels)
            if level < depth and any(item.kind == "call" for item in self.items[number])
        }
        if not opened and depth > 0 and self.recording.calls:  # no submodules: show functions
            opened, functions = {ROOT}, "all"
        return _Folding(self, opened, functions, fold).run()


class _Folding:
    """Folds a recording at one depth."""

    def __init__(self, folder: Folder, opened: set[int], functions: str, fold: bool) -> None:
        self.folder = folder
        self.recording = folder.recording
        self.opened = opened
        self.fold = fold
        self.seen = see(folder.recording, opened, functions)
        self.places: list[Place] = []
        self.place_of: dict[Item, int] = {}
        self.marks: dict[Item, Marks] = {}

    def run(self) -> Folded:
        linked = {item for source, target, _ in self.seen.links for item in (source, target)}
        inputs = [Item("function", n) for n in range(self.recording.num_inputs)]
        outputs = range(self.recording.first_output, len(self.recording.functions))
        for item in inputs:
            if item in linked:
                self._add(None, [(item, ())])
        roots = [Item("call", n) for n, call in enumerate(self.recording.calls) if not n]
        if ROOT in self.opened:
            self._fill(None, [_Stretch(self._shown_items(ROOT), ())])
        else:
            for item in roots:
                self._add(None, [(item, ())])
        for number in outputs:
            if Item("function", number) in linked:
                self._add(None, [(Item("function", number), ())])
        return Folded(self.places, self._links())

    def _shown_items(self, call: int) -> list[Item]:
        return [
            item
            for item in self.folder.items[call]
            if item.kind == "call" or item.number in self.seen.functions
        ]

    def _add(
        self,
        parent: int | None,
        found: Slot,
        repeat: int = 1,
    ) -> None:
        """Add a place for identical items, and the places in it."""
        items = [item for item, _ in found]
        first = items[0]
        is_open = first.kind == "call" and first.number in self.opened
        place = Place(len(self.places), parent, items, repeat, is_open)
        self.places.append(place)
        for i, (item, marks) in enumerate(found):
            self.place_of[item] = place.number
            found[i] = item, (*marks, (place.number, i)) if len(items) > 1 else marks
            self.marks[item] = found[i][1]
        if is_open:
            stretches = [_Stretch(self._shown_items(item.number), m) for item, m in found]
            self._fill(place.number, stretches)

    def _fill(self, parent: int | None, stretches: list[_Stretch]) -> None:
        """Add the places for identical stretches, such as the contents of repeated modules."""
        slots = _aligned(stretches, self.folder.signatures)
        for run in self._runs(slots):
            if run.period == 1:
                found = [pair for i in range(run.times) for pair in slots[run.first + i]]
                self._add(parent, found, run.times)
            else:
                self._add_group(parent, run, slots)

    def _runs(self, slots: list[Slot]) -> list[Run]:
        if not self.fold:
            return [Run(i, 1, 1) for i in range(len(slots))]
        firsts = [slot[0][0] for slot in slots]

        def has_call(first: int, end: int) -> bool:
            return any(item.kind == "call" for item in firsts[first:end])

        return runs_in([self.folder.signatures.of(item) for item in firsts], has_call)

    def _add_group(
        self,
        parent: int | None,
        run: Run,
        slots: list[Slot],
    ) -> None:
        """Add a frame around a repeated stretch, and the places in it."""
        place = Place(len(self.places), parent, [], run.times, True)
        self.places.append(place)
        stretches: list[_Stretch] = []
        for repetition in range(run.times):
            start = run.first + repetition * run.period
            by_marks: dict[Marks, list[Item]] = {}
            for slot in slots[start : start + run.period]:
                for item, marks in slot:
                    by_marks.setdefault(marks, []).append(item)
            for marks, items in by_marks.items():
                marks = (*marks, (place.number, len(stretches)))
                stretches.append(_Stretch(items, marks))
        self._fill(place.number, stretches)

    def _links(self) -> list[Link]:
        found: dict[tuple[int, int, bool], Link] = {}
        for source, target, read in self.seen.links:
            ends = self.place_of[source], self.place_of[target]
            to_next = self._is_later(source, target) or ends[0] >= ends[1]
            link = found.setdefault((*ends, to_next), Link(*ends, to_next, {}))
            link.tensors[read.tensor] = read
        return list(found.values())

    def _is_later(self, source: Item, target: Item) -> bool:
        """Whether two items are in different repetitions of a place."""
        of_source = dict(self.marks[source])
        return any(of_source.get(n, i) != i for n, i in self.marks[target])


def _aligned(stretches: list[_Stretch], signatures: Signatures) -> list[Slot]:
    """Align identical stretches: lists of their corresponding items."""
    order: list[Hashable] = []
    slots: dict[Hashable, Slot] = {}
    for stretch in stretches:
        position = 0
        for key, item in _keyed(stretch.items, signatures):
            if key in slots:
                position = max(position, order.index(key) + 1)
            else:
                slots[key] = []
                order.insert(position, key)
                position += 1
            slots[key].append((item, stretch.marks))
    return [slots[key] for key in order]


def _keyed(items: list[Item], signatures: Signatures) -> Iterator[tuple[Hashable, Item]]:
    """Items, each after its key: its name, and the count of the name so far."""
    counts: dict[Hashable, int] = {}
    for item in items:
        name = signatures.key(item)
        counts[name] = counts.get(name, 0) + 1
        yield (name, counts[name]), item
