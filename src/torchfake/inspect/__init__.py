"""Reading models without their weights: what is in one, does it run, will it fit.

Enters: any ``torch.nn.Module``, or a TARGET as the command line takes it. Leaves: plain frozen
records, which show themselves as text, in a terminal and in a notebook. Invariant: nothing here
prints, and no module is changed.
"""

from torchfake.inspect.build import Built as Built
from torchfake.inspect.build import build as build
from torchfake.inspect.build import device_named as device_named
from torchfake.inspect.build import dtype_named as dtype_named
from torchfake.inspect.check import Checked as Checked
from torchfake.inspect.check import check as check
from torchfake.inspect.diff import Diff as Diff
from torchfake.inspect.diff import diff as diff
from torchfake.inspect.fit import Fit as Fit
from torchfake.inspect.fit import Fits as Fits
from torchfake.inspect.fit import fit as fit
from torchfake.inspect.flops import Flops as Flops
from torchfake.inspect.gpus import read_profiles as read_profiles
from torchfake.inspect.inputs import ExampleInputs as ExampleInputs
from torchfake.inspect.inputs import example_inputs as example_inputs
from torchfake.inspect.inspection import Inspection as Inspection
from torchfake.inspect.inspection import Question as Question
from torchfake.inspect.inspection import inspect_target as inspect_target
from torchfake.inspect.memory import Estimate as Estimate
from torchfake.inspect.memory import Peak as Peak
from torchfake.inspect.memory import Timeline as Timeline
from torchfake.inspect.memory import estimate as estimate
from torchfake.inspect.report import report as report
from torchfake.inspect.specs import TensorSpec as TensorSpec
from torchfake.inspect.summary import Summary as Summary
from torchfake.inspect.summary import summary as summary
from torchfake.inspect.targets import Target as Target
from torchfake.inspect.targets import resolve as resolve
from torchfake.inspect.tree import ModuleNode as ModuleNode
from torchfake.inspect.tree import Size as Size
from torchfake.inspect.tree import TensorNode as TensorNode
from torchfake.inspect.tree import read_module as read_module

__all__ = [
    "Built",
    "Checked",
    "Diff",
    "Estimate",
    "ExampleInputs",
    "Fit",
    "Fits",
    "Flops",
    "Inspection",
    "ModuleNode",
    "Peak",
    "Question",
    "Size",
    "Summary",
    "Target",
    "TensorNode",
    "TensorSpec",
    "Timeline",
    "build",
    "check",
    "device_named",
    "diff",
    "dtype_named",
    "estimate",
    "example_inputs",
    "fit",
    "inspect_target",
    "read_module",
    "read_profiles",
    "report",
    "resolve",
    "summary",
]
