"""What holds of every graph, with the run as hooks and autograd see it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import torch
from torch import nn

from tests.inspect.dataflow.oracle import (
    INPUT,
    OUTPUT,
    ByAutograd,
    ByStorage,
    Key,
    Seen,
    Spec,
    seen,
    spec,
)
from torchfake import graph_of
from torchfake.inspect import DataflowGraph, GraphEdge, GraphNode
from torchfake.inspect.records.tensor_specs import TensorSpec

INDICES = r"\d+(?:-\d+)?(?:, (?:\.\.\. )?\d+(?:-\d+)?(?=[.,]|$))*"
"""As module names have them when several are one: ``0-3, 7`` and ``1, 3, ... 47``."""

MOST_CHARACTERS = 400_000
"""Of a figure at the depth that is chosen."""


def problems(model: nn.Module, inputs: dict[str, Any], answer: str | None = None) -> Iterator[str]:
    """What is wrong with the graphs of a model on its inputs."""
    run = seen(model, inputs, ByStorage(), answer)
    whole = graph_of(model, inputs, depth=99, fold=False, functions="none", answer=answer)
    joined = graph_of(model, inputs, depth=99, fold=False, answer=answer)
    folded = graph_of(model, inputs, answer=answer)
    deep = graph_of(model, inputs, depth=99, answer=answer)
    for graph in (whole, joined, folded, deep):
        yield from _order(graph)
        yield from _edges_are_whole(graph)
        yield from _counts(graph)
    for graph in (joined, folded, deep):
        yield from _reach(graph, run)
    yield from _forms(folded)
    yield from _leaves(whole, run)
    yield from _dataflow(whole, run, seen(model, inputs, ByAutograd(), answer))
    yield from _folds(deep, joined)
    yield from _boxes(folded, run)


def _order(graph: DataflowGraph) -> Iterator[str]:
    for edge in graph.edges:
        if not edge.to_next and edge.source >= edge.target:
            yield f"a cycle at {graph.nodes[edge.source].name}"
        if edge.to_next and not any(n.repeat > 1 for n in graph.nodes):
            yield f"an edge back where nothing repeats: {graph.nodes[edge.source].name}"


def _edges_are_whole(graph: DataflowGraph) -> Iterator[str]:
    """Each has a producer, a consumer and tensors, none is twice, and frames have none."""
    twice = Counter((edge.source, edge.target, edge.to_next) for edge in graph.edges)
    for (source, target, _), count in twice.items():
        names = f"{graph.nodes[source].name} -> {graph.nodes[target].name}"
        if count > 1:
            yield f"{names} is there {count} times"
        if graph.nodes[source].is_open or graph.nodes[target].is_open:
            yield f"{names} ends at a frame"
        if graph.nodes[source].kind == "output" or graph.nodes[target].kind == "input":
            yield f"{names} leads out of an output or into an input"
    for edge in graph.edges:
        least = sum(map(_num_bytes, edge.tensors))
        if not edge.tensors or edge.num_tensors < len(edge.tensors) or edge.num_bytes < least:
            yield f"{graph.nodes[edge.source].name} passes on {edge}"


def _num_bytes(found: TensorSpec) -> int:
    return math.prod(found.shape) * getattr(torch, found.dtype).itemsize


def _counts(graph: DataflowGraph) -> Iterator[str]:
    """A box stands for as many calls as it, and what it is in, are repeated."""
    times: dict[int | None, int] = {None: 1}
    for node in graph.nodes:
        times[node.number] = times[node.parent] * node.repeat
        if node.kind == "module" and node.num_calls != times[node.number]:
            yield f"{node.name} stands for {node.num_calls} calls, shown {times[node.number]} times"
        if node.num_modules > node.num_calls:
            yield f"{node.name}: {node.num_modules} modules, {node.num_calls} calls"


def _reach(graph: DataflowGraph, run: Seen) -> Iterator[str]:
    """Inputs that an output depends on are shown, and lead to it."""
    used = {source[0] for source, target in run.edges if target == OUTPUT and source[1] == INPUT}
    for name in used:
        reached = {n.number for n in graph.nodes if n.kind == "input" and n.name == name}
        for _ in graph.nodes:
            more = {edge.target for edge in graph.edges if edge.source in reached} - reached
            if not more:
                break
            reached |= more
        if not any(graph.nodes[number].kind == "output" for number in reached):
            yield f"no output is reached from {name}"
    led_to = {edge.target for edge in graph.edges}
    for node in graph.nodes:
        if node.kind == "output" and node.number not in led_to:
            yield f"nothing leads to {node.name}"


def _forms(graph: DataflowGraph) -> Iterator[str]:
    svg = graph.to_svg()
    root = ElementTree.fromstring(svg)
    if len(svg) > MOST_CHARACTERS:
        yield f"a figure of {len(svg)} characters"
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        if x < left or y < top or x + w > left + width or y + h > top + height:
            yield f"a box at {x}, {y} is outside of {width} x {height}"
    texts = {"".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")}
    for node in graph.nodes:
        if node.kind == "module" and not any(_names(text, node.class_name) for text in texts):
            yield f"{node.class_name} is not written in the figure"
    for form in (graph.to_dot(), str(graph), graph.to_dict()):
        if not form:
            yield "a form of it is empty"


def _names(text: str, name: str) -> bool:
    """Whether a text has a name, or as much of it as fits."""
    return name in text or any(f"{name[:end]}..." in text for end in range(8, len(name)))


def _leaves(graph: DataflowGraph, run: Seen) -> Iterator[str]:
    """Each call without calls in it is one box, with what it put out."""
    boxes = {key: node for key, node in _by_key(graph).items() if not node.is_open}
    calls = {call.key: call for call in run.calls if call.is_leaf}
    for key in boxes.keys() ^ calls.keys():
        if key[1] >= 0:
            yield f"{key} is {'not shown' if key in calls else 'shown, and did not run'}"
    for key in boxes.keys() & calls.keys():
        call, node = calls[key], boxes[key]
        if [_spec(found) for found in node.outputs] != call.outputs:
            yield f"{key} put out {call.outputs}, shown is {node.outputs}"
        if node.num_parameters != sum(p.numel() for p in call.module.parameters()):
            yield f"{key} is shown with {node.num_parameters} parameters"
        if node.class_name != type(call.module).__name__:
            yield f"{key} is a {type(call.module).__name__}, shown as {node.class_name}"


def _dataflow(graph: DataflowGraph, run: Seen, by_autograd: Seen) -> Iterator[str]:
    """The edges of the graph of all calls, between those that autograd and storages allow."""
    keys = {node.number: key for key, node in _by_key(graph).items()}
    shown = {(keys[edge.source], keys[edge.target]) for edge in graph.edges}
    shown = {(source, OUTPUT if target[1] == OUTPUT[1] else target) for source, target in shown}
    for source, target in shown - run.edges:
        if source in run.asked:  # a number made of its values may have come anywhere
            continue
        yield f"{source} -> {target} is shown, and they share nothing"
    if [call.key for call in by_autograd.calls] == [call.key for call in run.calls]:
        for source, target in by_autograd.edges - shown:
            if not any((p, target) in shown for p in by_autograd.passed):
                yield f"{source} -> {target} by autograd is not shown"
    given = {call.key: {spec(tensor) for tensor in call.given} for call in run.calls}
    for edge in graph.edges:
        target = keys[edge.target]
        for found in edge.tensors:
            if target in given and _spec(found) not in given[target]:
                yield f"{target} took {given[target]}, shown is {found}"


def _by_key(graph: DataflowGraph) -> dict[Key, GraphNode]:
    counts: Counter[str] = Counter()
    found: dict[Key, GraphNode] = {}
    for node in graph.nodes:
        if node.kind == "module":
            found[node.name, counts[node.name]] = node
            counts[node.name] += 1
        else:
            found[node.name, INPUT if node.kind == "input" else OUTPUT[1]] = node
    return found


def _spec(found: TensorSpec) -> Spec:
    return found.shape, found.dtype


def _folds(graph: DataflowGraph, whole: DataflowGraph) -> Iterator[str]:
    """Folded, a graph has as many calls of each class, and all edges, indices left out."""
    alike = [Counter[Any](), Counter[Any]()]
    for counts, found in zip(alike, (graph, whole), strict=True):
        for node in found.nodes:
            if node.kind == "module":
                counts[node.class_name, node.num_parameters, node.outputs] += node.num_calls
    for kind in (alike[0] - alike[1]) + (alike[1] - alike[0]):
        yield f"folding changes {kind}: {alike[1][kind]} are {alike[0][kind]}"
    edges = [{_without_indices(found, edge) for edge in found.edges} for found in (graph, whole)]
    for edge in edges[0] ^ edges[1]:
        yield f"folding {'adds' if edge in edges[0] else 'loses'} {edge}"


def _without_indices(graph: DataflowGraph, edge: GraphEdge) -> tuple[str, ...]:
    ends = graph.nodes[edge.source].name, graph.nodes[edge.target].name
    names = (re.sub(r"(^|(?<=\.))" + INDICES + r"(?=\.|$|, )", "#", name) for name in ends)
    return tuple(", ".join(sorted(set(name.split(", ")))) for name in names)


def _boxes(graph: DataflowGraph, run: Seen) -> Iterator[str]:
    """What is shown at a depth are the calls down to that depth."""
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        if node.kind == "module" and node.name:
            counts[node.class_name] += node.num_calls
    ran = Counter(type(c.module).__name__ for c in run.calls if 1 <= c.level <= graph.depth)
    if counts != ran:
        yield f"at depth {graph.depth}, {counts - ran} too many, {ran - counts} are left out"
