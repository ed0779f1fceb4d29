"""The data flow between the modules of a model: ``graph_of``.

Input: a module and inputs. Output: a :class:`DataflowGraph`, plain data that is displayed as text,
as a figure, and in the DOT language. Invariant: the module is not run; a fake copy of it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from torchfake._core.arguments import check_flag, is_whole_number
from torchfake._core.gpu_profiles import CudaProfile
from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import check_module, workload_of
from torchfake.inspect.dataflow.folding import Folded, Folder, Link, Place
from torchfake.inspect.dataflow.links import FUNCTIONS
from torchfake.inspect.dataflow.recording import OUTSIDE, Recording, record
from torchfake.inspect.inputs.given import (
    Shape,
    inputs_explained,
    inputs_given,
)
from torchfake.inspect.records.messages import answers_to_dict
from torchfake.inspect.records.module_names import fold_names
from torchfake.inspect.records.record import Record, drawn_as
from torchfake.inspect.records.tensor_specs import TensorSpec
from torchfake.observe import Answer, AnswerFunction

MOST_NODES = 40
"""The most nodes of a graph whose depth is not given, unless depth 1 has more."""


@dataclass(frozen=True)
class GraphNode:
    """A box of a graph: a module, several identical ones, or a function between modules."""

    number: int
    kind: str  # "input", "output", "module", "function", or "repeat" for a repeated stretch
    name: str  # full name of a module, "layers.0-31" for several; a function's; "" for "repeat"
    class_name: str  # of the module
    parent: int | None  # number of the node that it is drawn in
    is_open: bool  # whether it is a frame around other nodes
    repeat: int  # the number of repetitions in its parent that it stands for
    is_chain: bool  # whether each repetition reads from the one before
    num_modules: int  # in all repetitions; fewer than calls, if a module is called repeatedly
    num_calls: int
    num_parameters: int  # of one module, its descendants included
    parameter_bytes: int  # of one module, its descendants included
    outputs: tuple[TensorSpec, ...]  # of the first call
    tied_to: tuple[str, ...] = ()  # full names of earlier modules whose parameters it shares


@dataclass(frozen=True)
class GraphEdge:
    """The tensors that one node passes to another."""

    source: int
    target: int
    to_next: bool  # from one repetition to the next; only these edges may lead backwards
    tensors: tuple[TensorSpec, ...]  # the distinct specs
    num_tensors: int
    num_bytes: int  # of all tensors; tensors that share memory are each counted


@dataclass(frozen=True, repr=False)
class DataflowGraph(Record):
    """Modules as boxes, and tensors between them as edges; identical modules are folded."""

    class_name: str
    depth: int
    max_depth: int  # the depth at which all modules are shown
    nodes: tuple[GraphNode, ...]  # in execution order
    edges: tuple[GraphEdge, ...]
    answers: tuple[Answer, ...] = ()  # to questions about unknown values

    @cached_property
    def children(self) -> dict[int | None, list[GraphNode]]:
        """The nodes in each frame, by the frame's number; under None the nodes in no frame."""
        found: dict[int | None, list[GraphNode]] = {None: []}
        for node in self.nodes:
            found.setdefault(node.parent, []).append(node)
        return found

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        return {
            "class_name": self.class_name,
            "depth": self.depth,
            "max_depth": self.max_depth,
            "nodes": [{**asdict(n), "outputs": _dicts(n.outputs)} for n in self.nodes],
            "edges": [{**asdict(e), "tensors": _dicts(e.tensors)} for e in self.edges],
            **answers_to_dict(self.answers),
        }

    def to_svg(self) -> str:
        """The graph as an SVG figure, for light and dark pages."""
        return drawn_as(self, "svg")

    def to_dot(self) -> str:
        """The graph in the DOT language, for Graphviz."""
        return drawn_as(self, "dot")

    def _repr_svg_(self) -> str:
        return self.to_svg()


def _dicts(specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
    return [spec.to_dict() for spec in specs]


def graph_of(
    module: nn.Module,
    *inputs: Any,
    depth: int | None = None,
    functions: str = "joining",
    fold: bool = True,
    device: torch.device | str | None = None,
    gpu: str | CudaProfile | None = None,
    answer: str | AnswerFunction | None = None,
    batch: int | None = None,
    seq: int | None = None,
    input_size: Shape | Sequence[Shape] | None = None,
) -> DataflowGraph:
    """Return the data flow between the submodules of `module` when it runs on these inputs.

    A fake copy runs one forward pass without gradients. In a notebook the graph is displayed as a
    figure, and printing it gives a table; ``to_svg()``, ``to_dot()`` and ``to_dict()`` return other
    formats.

    Args:
        module: fake, deferred or real; it is not modified.
        inputs: the arguments of its ``forward``; a single mapping is used as keyword arguments.
            See :func:`example_inputs`.
        depth: the number of module levels to expand, 1 or more; by default as many as give at most
            40 boxes.
        functions: which functions between modules to show: ``"joining"``, those that combine the
            outputs of several modules, such as a residual addition; ``"all"``; or ``"none"``.
        fold: show identical consecutive modules of a list as one box.
        device: the device to run on; by default that of the module.
        gpu: a GPU profile or its name; implies ``device="cuda"``.
        answer: supplies unknown values: ``"typical"`` or a function, as for
            :func:`torchfake.fake_mode`. ``answers`` of the result lists the answers given.
        batch: instead of inputs: a batch size; :func:`example_inputs` generates the inputs.
        seq: instead of inputs: the sequence length of generated inputs.
        input_size: instead of inputs: the shape of a tensor, batch first, or a list of shapes.

    Raises:
        TypeError: if `module` is not a module.
        InputsError: if no inputs are given and none can be generated, or an option is invalid.
        Exception: any error that the module raises on these inputs; :func:`check` locates it.

    >>> graph_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.ones(2, 3))
    node    class   output         bytes  parameters  from
    input           float32[2, 3]   24 B
    0       Linear  float32[2, 4]   32 B          16  input
    1       ReLU    float32[2, 4]   32 B           0  0
    output          float32[2, 4]   32 B              1
    """
    check_module(module)
    check_flag(fold, "fold")
    if depth is not None and not is_whole_number(depth, 1):
        raise InputsError(f"depth={depth!r} is not a number of levels, 1 or more")
    if functions not in FUNCTIONS:
        raise InputsError(f"functions={functions!r} is not one of {', '.join(FUNCTIONS)}")
    inputs = inputs_given(module, inputs, batch=batch, seq=seq, input_size=input_size)
    if not inputs:
        raise InputsError(
            f"a graph needs a run, and {type(module).__name__} has no inputs: give them, or "
            "batch=, seq= or input_size="
        )
    workload = workload_of(module, inputs, device=device, gpu=gpu, answer=answer)
    fake_copy = workload.fake_copy()
    with inputs_explained(workload, inputs):
        recording = record(fake_copy)
    return _shown(recording, depth, functions, fold, fake_copy.answers)


def _shown(
    recording: Recording, depth: int | None, functions: str, fold: bool, answers: tuple[Answer, ...]
) -> DataflowGraph:
    folder = Folder(recording)
    if depth is None:
        depth, folded = _readable(folder, functions, fold)
    else:
        folded = folder.at(depth, functions, fold)
    nodes = _Nodes(recording, folded)
    return DataflowGraph(
        type(recording.calls[0].module).__name__,
        min(depth, folder.max_depth),
        folder.max_depth,
        tuple(map(nodes.node, folded.places)),
        tuple(map(_edge, folded.links)),
        answers,
    )


def _readable(folder: Folder, functions: str, fold: bool) -> tuple[int, Folded]:
    """The greatest depth with at most MOST_NODES nodes, or 1; and the graph at that depth."""
    found = 1, folder.at(1, functions, fold)
    for depth in range(2, folder.max_depth + 1):
        deeper = folder.at(depth, functions, fold)
        if len(deeper.places) > MOST_NODES:
            break
        found = depth, deeper
    return found


class _Nodes:
    """Creates the nodes of a graph from places."""

    def __init__(self, recording: Recording, folded: Folded) -> None:
        self.recording = recording
        self.chained = {link.source for link in folded.links if link.to_next}
        self.parents = {place.number: place.parent for place in folded.places}
        for number in list(self.chained):
            self.chained.update(self._frames_around(number))
        self.owners = _owners(recording)
        self.taken: dict[int, dict[TensorSpec, None]] = {}  # results that are read, by function
        for function in recording.functions:
            for read in function.reads:
                self.taken.setdefault(read.maker, {})[read.spec] = None

    def _frames_around(self, number: int) -> Iterator[int]:
        parent = self.parents[number]
        while parent is not None:
            yield parent
            parent = self.parents[parent]

    def node(self, place: Place) -> GraphNode:
        """The node of a place."""
        calls = [self.recording.calls[item.number] for item in place.items if item.kind == "call"]
        modules = {id(call.module): call for call in calls}
        sizes = _sizes(calls[0].module) if calls else (0, 0)
        return GraphNode(
            number=place.number,
            kind=self._kind(place),
            name=self._name(place, [call.name for call in modules.values()]),
            class_name=type(calls[0].module).__name__ if calls else "",
            parent=place.parent,
            is_open=place.is_open,
            repeat=place.repeat,
            is_chain=place.repeat > 1 and place.number in self.chained,
            num_modules=len(modules),
            num_calls=len(calls),
            num_parameters=sizes[0],
            parameter_bytes=sizes[1],
            outputs=self._outputs(place),
            tied_to=tuple(self._tied(calls[0].module, calls[0].name)) if calls else (),
        )

    def _kind(self, place: Place) -> str:
        if not place.items:
            return "repeat"
        item = place.items[0]
        if item.kind == "call":
            return "module"
        if self.recording.functions[item.number].scope != OUTSIDE:
            return "function"
        return "input" if item.number < self.recording.num_inputs else "output"

    def _name(self, place: Place, names: list[str]) -> str:
        if names:
            return ", ".join(text for text, _ in fold_names(names))
        return self.recording.functions[place.items[0].number].name if place.items else ""

    def _outputs(self, place: Place) -> tuple[TensorSpec, ...]:
        if not place.items:
            return ()
        item = place.items[0]
        if item.kind == "call":
            return tuple(self.recording.calls[item.number].outputs)
        function = self.recording.functions[item.number]
        if function.scope != OUTSIDE:  # without intermediate results, which no other function reads
            return tuple(self.taken.get(item.number, {}) or function.made[-1:])
        return tuple(dict.fromkeys(function.made or [read.spec for read in function.reads]))

    def _tied(self, module: nn.Module, name: str) -> Iterator[str]:
        """The names of earlier modules that own some of the module's own parameters too."""
        owners = {self.owners[id(p)] for p in module._parameters.values() if p is not None}
        yield from sorted(owners - {name})


def _owners(recording: Recording) -> dict[int, str]:
    """The name of the first module that ran with each parameter, by the parameter's id."""
    found: dict[int, str] = {}
    for call in recording.calls:
        for parameter in call.module._parameters.values():
            if parameter is not None:
                found.setdefault(id(parameter), call.name)
    return found


def _sizes(module: nn.Module) -> tuple[int, int]:
    parameters = list(module.parameters())
    return sum(p.numel() for p in parameters), sum(p.nbytes for p in parameters)


def _edge(link: Link) -> GraphEdge:
    reads = list(link.tensors.values())
    counts = Counter(read.spec for read in reads)
    return GraphEdge(
        link.source,
        link.target,
        link.to_next,
        tuple(counts),
        len(reads),
        sum(spec.num_bytes * count for spec, count in counts.items()),
    )
