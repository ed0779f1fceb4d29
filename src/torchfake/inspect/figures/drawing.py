"""The data of figures: the blocks of an icicle, and the bytes held over a step.

Input: a Summary, an Estimate. Output: plain data. Invariant: the numbers of blocks and of events
are bounded for any model; the peak is among the events.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from torchfake.inspect.contents.tree import ModuleNode
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit_record import RESERVED_BYTES
from torchfake.inspect.records import units
from torchfake.inspect.records.module_names import join_name, name_and_ancestors
from torchfake.inspect.storages.lifetimes import PHASES
from torchfake.inspect.summary import Summary

MAX_EVENTS = 1200
"""The most events shown along a timeline."""

MAX_SLICES = 150
"""The most stretches of a timeline that are described one by one."""

MAX_BLOCKS = 2000
"""The most blocks of an icicle; upper levels come first."""

Array = np.ndarray[Any, Any]


class Block(NamedTuple):
    """A module in an icicle, or several identical ones."""

    name: str
    parent: str  # the name of the parent; "" for the root
    label: str
    value: int  # drawn as the width
    repeat: int = 1  # the number of modules that it stands for


class Icicle(NamedTuple):
    """A tree drawn with values as widths, the root on top, level by level."""

    title: str
    blocks: list[Block]
    text: Callable[[int], str]  # formats a value


class Slice(NamedTuple):
    """A stretch of a timeline, described at the event at which the most is held."""

    first: int  # event
    end: int  # event
    text: str  # the bytes of each category, the phase and the module


class Curve(NamedTuple):
    """Bytes held by category, after the events that are shown."""

    title: str
    categories: tuple[str, ...]
    events: Array  # int64 [events]
    num_bytes: Array  # int64 [events, categories]
    phases: list[tuple[str, int, int]]  # each phase but the start, with its first and last event
    peak_event: int
    peak_bytes: int
    slices: list[Slice]
    usable_bytes: int | None = None  # what the step can use of the GPU, if that is in the figure

    @property
    def peak_text(self) -> str:
        """The label of the peak."""
        return f"peak {units.bytes_text(self.peak_bytes)}"


Value = Callable[[ModuleNode, int, list[str]], int]
"""Gives the value of a node, from the node, the number of all modules that it stands for, and the
full names of those under one parent."""


def parameters_icicle(summary: Summary) -> Icicle:
    """An icicle of the bytes of parameters by module."""
    blocks = _blocks(summary.tree, lambda node, times, names: times * node.size.parameter_bytes)
    return Icicle("Bytes of parameters by module", blocks, units.bytes_text)


def operations_icicle(summary: Summary) -> Icicle:
    """An icicle of operations by module, forward and backward together."""
    blocks = _blocks(
        summary.tree,
        lambda node, times, names: times * sum(summary.flops_of(names)[:2]) // len(names),
    )
    return Icicle("Operations by module, forward and backward", blocks, units.flops_text)


def peak_icicle(estimate: Estimate) -> Icicle:
    """An icicle of the bytes held at the peak by module; equal consecutive modules are one. What no
    module has made, such as a cache, is by category; so are the workspaces of cuBLAS.
    """
    sizes: dict[str, int] = {"": estimate.workspace_bytes}
    for name, own in estimate.by_module.items():
        for ancestor in name_and_ancestors(name):
            sizes[ancestor] = sizes.get(ancestor, 0) + sum(own.values())
    blocks = _peak_blocks(sizes, estimate.class_name)
    apart = estimate.by_module.get("", {}) | {"workspace": estimate.workspace_bytes}
    large = {name: size for name, size in apart.items() if size > _LEAST_SHARE * sizes[""]}
    num_upper = 1 + sum(block.parent == estimate.class_name for block in blocks)
    blocks[num_upper:num_upper] = [
        Block(f"({name})", estimate.class_name, name, size) for name, size in large.items()
    ]
    return Icicle("Bytes held at the peak, by module", blocks, units.bytes_text)


_LEAST_SHARE = 0.01
"""Of the peak, that a category has to have for a block of its own."""


def _peak_blocks(sizes: dict[str, int], root: str) -> list[Block]:
    """The blocks of modules of these sizes by full name, level by level."""
    children: dict[str, list[str]] = {}
    for name in sorted(sizes, key=_in_order):
        if name:
            children.setdefault(name.rpartition(".")[0], []).append(name)

    def shape(name: str) -> Any:
        inside = [(child.rpartition(".")[2], shape(child)) for child in children.get(name, [])]
        return sizes[name], inside

    blocks = [Block(root, "", root, sizes[""])]
    level = [("", root, 1)]
    while level and len(blocks) < MAX_BLOCKS:
        parents, level = level, []
        for parent, block_name, count in parents:
            for names in _equal_runs(children.get(parent, []), shape):
                first, last = (name.rpartition(".")[2] for name in (names[0], names[-1]))
                label = first if len(names) == 1 else f"{first}-{last}"
                full, times = join_name(parent, label), count * len(names)
                value = times * sizes[names[0]]
                blocks.append(Block(full, block_name, label, value, len(names)))
                level.append((names[0], full, times))
    return blocks[:MAX_BLOCKS]


def _equal_runs(names: list[str], shape: Callable[[str], Any]) -> Iterator[list[str]]:
    """Names of modules, those of equal consecutive modules of a list together."""
    run: list[str] = []
    for name in names:
        is_next = run and name.rpartition(".")[2].isdigit() and shape(name) == shape(run[-1])
        if run and not is_next:
            yield run
            run = []
        run.append(name)
    if run:
        yield run


def _in_order(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers in names by value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _blocks(tree: ModuleNode, value: Value) -> list[Block]:
    """The blocks of a tree, level by level."""
    blocks: list[Block] = []
    level = [(tree, "", "", "", 1)]  # node, parent block, parent's path, parent's shown path, count
    while level:
        next_level = []
        for node, parent, path, shown_path, count in level:
            count *= node.repeat
            names = [join_name(path, name) for name in node.names]
            size = value(node, count, names)
            if len(blocks) >= MAX_BLOCKS or not size:
                continue
            shown = join_name(shown_path, node.name)
            label = f"{node.repeat} x {node.class_name}" if node.repeat > 1 else node.class_name
            name = shown or tree.class_name
            blocks.append(Block(name, parent, f"{node.name} {label}".strip(), size, node.repeat))
            next_level += [(child, name, names[0], shown, count) for child in node.children]
        level = next_level
    return blocks


_HIGHEST = 1.75
"""How many times the peak the memory of a GPU may be to be in the figure."""


def memory_curve(estimate: Estimate, reserved_bytes: int = RESERVED_BYTES) -> Curve:
    """The curve of the bytes held in a step, and what is usable of its GPU: all but those reserved
    for the CUDA context and as a margin.
    """
    timeline, peak, gpu = estimate.timeline, estimate.peak, estimate.gpu
    usable = None if gpu is None else gpu.total_memory - reserved_bytes
    events = _shown_events(timeline.total, peak.event)
    return Curve(
        f"Memory held in a step of {estimate.mode}",
        timeline.categories,
        events,
        timeline.num_bytes[events],
        list(_phases(timeline.phase)),
        peak.event,
        estimate.peak_bytes,
        list(_slices(estimate)),
        usable if usable and usable <= _HIGHEST * estimate.peak_bytes else None,
    )


def _slices(estimate: Estimate) -> Iterator[Slice]:
    """Stretches of equal length, each described."""
    timeline, lives = estimate.timeline, estimate.lives
    total = timeline.total
    edges = np.unique(np.linspace(0, len(total), MAX_SLICES + 1).astype(np.int64)).tolist()
    for first, end in itertools.pairwise(edges):
        event = first + int(total[first:end].argmax())
        row = max(int(np.searchsorted(lives.allocated_at, event, side="right")) - 1, 0)
        where = [PHASES[timeline.phase[event]], lives.module[row]]
        held = zip(timeline.categories, timeline.num_bytes[event].tolist(), strict=True)
        lines = [f"{name} {units.bytes_text(n)}" for name, n in held if n]
        head = f"{', '.join(filter(None, where))}: {units.bytes_text(int(total[event]))}"
        yield Slice(first, end, "\n".join([head, *lines]))


def _shown_events(total: Array, peak: int) -> Array:
    """The events to show: in each range of events the one with the most bytes, and the peak."""
    if len(total) <= MAX_EVENTS:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), MAX_EVENTS, dtype=np.int64)
    found = [int(a + total[a:b].argmax()) for a, b in itertools.pairwise(edges)]
    return np.unique([*found, peak, len(total) - 1])


def _phases(phase: Array) -> Iterator[tuple[str, int, int]]:
    for number in np.unique(phase).tolist():
        events = np.flatnonzero(phase == number)
        if PHASES[number] != "start":
            yield PHASES[number], int(events[0]), int(events[-1])
