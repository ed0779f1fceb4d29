"""Examines models without their weights: what they contain, whether they run, whether they fit.

Input: any ``torch.nn.Module``, or a TARGET as the command line takes it. Output: plain frozen
records, which are displayed as text, in a terminal and in a notebook. Invariant: nothing here
prints, and no module is changed; a run is observed through :mod:`torchfake.observe` alone.

Files, each a public function and its record:

    summary        the tree of a module; with inputs its outputs and operations
    flops          FLOPs by module
    check          whether a module runs on its inputs, and where it fails
    serve          a serving workload: users, context, cache
    gpu_files      profiles of GPUs from a TOML file
    next_commands  commands to try where a step does not fit
    question       a question about a model, answered by running it
    inspection     all answers about a TARGET, for the command line

Packages, lowest first:

    records     the base of all records; tensors, names, numbers, errors as text
    arithmetic  the FLOPs and bytes of operators, and whose FLOPs are not known
    timing      how long a step takes on a GPU, predicted without one
    allocator   a model of CUDA's caching allocator
    targets     resolves and builds a TARGET
    contents    what models and checkpoints contain, and how two of them differ
    copies      fake copies of the user's objects
    storages    observes the storages of a run
    steps       runs a step on a fake copy
    serving     the passes and caches of a served model
    inputs      generates inputs for models of transformers, or reads them from text
    memory      how much memory a step takes, and which GPUs it fits on
    dataflow    what the modules of a model pass to each other
    show        records as text, and in a terminal
    figures     records as HTML, SVG, plotly figures and pages
"""

from torchfake.inspect.check import Checked as Checked
from torchfake.inspect.check import check as check
from torchfake.inspect.contents.diff import Diff as Diff
from torchfake.inspect.contents.diff import diff as diff
from torchfake.inspect.contents.tree import ModuleNode as ModuleNode
from torchfake.inspect.contents.tree import Size as Size
from torchfake.inspect.contents.tree import TensorNode as TensorNode
from torchfake.inspect.contents.tree import read_module as read_module
from torchfake.inspect.contents.weights import Weights as Weights
from torchfake.inspect.contents.weights import weights as weights
from torchfake.inspect.dataflow.model_graph import DataflowGraph as DataflowGraph
from torchfake.inspect.dataflow.model_graph import GraphEdge as GraphEdge
from torchfake.inspect.dataflow.model_graph import GraphNode as GraphNode
from torchfake.inspect.dataflow.model_graph import graph_of as graph_of
from torchfake.inspect.figures.report import report as report
from torchfake.inspect.flops import Flops as Flops
from torchfake.inspect.gpu_files import read_profiles as read_profiles
from torchfake.inspect.inputs.example_inputs import ExampleInputs as ExampleInputs
from torchfake.inspect.inputs.example_inputs import example_inputs as example_inputs
from torchfake.inspect.inspection import Inspection as Inspection
from torchfake.inspect.inspection import inspect_target as inspect_target
from torchfake.inspect.memory.estimate import estimate as estimate
from torchfake.inspect.memory.estimate_record import Estimate as Estimate
from torchfake.inspect.memory.estimate_record import Peak as Peak
from torchfake.inspect.memory.estimate_record import Timeline as Timeline
from torchfake.inspect.memory.fit import Fit as Fit
from torchfake.inspect.memory.fit import Fits as Fits
from torchfake.inspect.memory.fit import fit as fit
from torchfake.inspect.question import Question as Question
from torchfake.inspect.records import moved as _moved  # noqa: F401  names in pickles
from torchfake.inspect.records.tensor_specs import TensorSpec as TensorSpec
from torchfake.inspect.records.units import set_units as set_units
from torchfake.inspect.serve import Serve as Serve
from torchfake.inspect.show import register as _register  # noqa: F401  how records look
from torchfake.inspect.summary import Summary as Summary
from torchfake.inspect.summary import summary as summary
from torchfake.inspect.targets.build import Built as Built
from torchfake.inspect.targets.build import build as build
from torchfake.inspect.targets.options import device_named as device_named
from torchfake.inspect.targets.options import dtype_named as dtype_named
from torchfake.inspect.targets.resolve import resolve as resolve
from torchfake.inspect.targets.target import Target as Target

__all__ = [
    "Built",
    "Checked",
    "DataflowGraph",
    "Diff",
    "Estimate",
    "ExampleInputs",
    "Fit",
    "Fits",
    "Flops",
    "GraphEdge",
    "GraphNode",
    "Inspection",
    "ModuleNode",
    "Peak",
    "Question",
    "Serve",
    "Size",
    "Summary",
    "Target",
    "TensorNode",
    "TensorSpec",
    "Timeline",
    "Weights",
    "build",
    "check",
    "device_named",
    "diff",
    "dtype_named",
    "estimate",
    "example_inputs",
    "fit",
    "graph_of",
    "inspect_target",
    "read_module",
    "read_profiles",
    "report",
    "resolve",
    "set_units",
    "summary",
    "weights",
]
