"""Models examined without their weights: what one contains, whether it runs, whether it fits.

Input: any ``torch.nn.Module``, or a TARGET as the command line takes it. Output: plain frozen
records, which show themselves as text, in a terminal and in a notebook. Invariant: nothing here
prints, and no module is changed.

The answers, each a function and its record:

    summary     the tree of a module; with inputs its outputs and operations
    tree        the tree itself, equal blocks folded
    flops       operations by module
    model_graph  what the modules pass to each other, as a graph
    check       whether a module runs on its inputs, and where it fails
    memory      how much memory a step takes, and what holds it at the peak
    left_out    what an estimate leaves out of a real run
    experts     the parameters of a mixture of experts that compute a token
    fit         which GPUs a step fits on, and the largest batch that does
    several_gpus  the plan to try where it fits on none
    search      the largest size at which a step fits
    serve       how a model is served: users, context, cache
    weights     the bytes of a model's weights, quantized
    diff        what differs between two models or checkpoints
    changes     the differences grouped into lines
    contents    the tensors of a model or checkpoint by name
    renames     a prefix of names that one of two models has renamed
    gpu_files   profiles of GPUs from a TOML file
    inspection  all of these about a TARGET, for the command line

Packages below them, lowest first: ``describe`` (names, numbers and errors as text), ``base_record``
(the base of all records), ``targets`` (a TARGET is built), ``run`` (a step is run on fakes and its
storages are tracked), ``dataflow`` (which module reads whose results), ``inputs`` (inputs are made
for models of transformers). Above them, ``show``
draws the records.
"""

from torchfake.inspect.check import Checked as Checked
from torchfake.inspect.check import check as check
from torchfake.inspect.describe.tensor_specs import TensorSpec as TensorSpec
from torchfake.inspect.describe.units import set_units as set_units
from torchfake.inspect.diff import Diff as Diff
from torchfake.inspect.diff import diff as diff
from torchfake.inspect.estimates import Estimate as Estimate
from torchfake.inspect.estimates import Peak as Peak
from torchfake.inspect.estimates import Timeline as Timeline
from torchfake.inspect.fit import Fit as Fit
from torchfake.inspect.fit import Fits as Fits
from torchfake.inspect.fit import fit as fit
from torchfake.inspect.flops import Flops as Flops
from torchfake.inspect.gpu_files import read_profiles as read_profiles
from torchfake.inspect.inputs.example_inputs import ExampleInputs as ExampleInputs
from torchfake.inspect.inputs.example_inputs import example_inputs as example_inputs
from torchfake.inspect.inspection import Inspection as Inspection
from torchfake.inspect.inspection import Question as Question
from torchfake.inspect.inspection import inspect_target as inspect_target
from torchfake.inspect.memory import estimate as estimate
from torchfake.inspect.model_graph import DataflowGraph as DataflowGraph
from torchfake.inspect.model_graph import GraphEdge as GraphEdge
from torchfake.inspect.model_graph import GraphNode as GraphNode
from torchfake.inspect.model_graph import graph_of as graph_of
from torchfake.inspect.serve import Serve as Serve
from torchfake.inspect.show import register as _register  # noqa: F401  how records look
from torchfake.inspect.show.report import report as report
from torchfake.inspect.summary import Summary as Summary
from torchfake.inspect.summary import summary as summary
from torchfake.inspect.targets.build import Built as Built
from torchfake.inspect.targets.build import build as build
from torchfake.inspect.targets.options import device_named as device_named
from torchfake.inspect.targets.options import dtype_named as dtype_named
from torchfake.inspect.targets.resolve import resolve as resolve
from torchfake.inspect.targets.target import Target as Target
from torchfake.inspect.tree import ModuleNode as ModuleNode
from torchfake.inspect.tree import Size as Size
from torchfake.inspect.tree import TensorNode as TensorNode
from torchfake.inspect.tree import read_module as read_module
from torchfake.inspect.weights import Weights as Weights
from torchfake.inspect.weights import weights as weights

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
