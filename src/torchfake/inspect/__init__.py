"""Reading models without their weights: from a TARGET to a tree of modules with sizes.

Enters: a TARGET as the command line takes it, or any ``torch.nn.Module``. Leaves: plain frozen
records, and text made from them. Invariant: nothing here prints, and no module is changed.
"""

from torchfake.inspect.build import Built as Built
from torchfake.inspect.build import build as build
from torchfake.inspect.build import device_named as device_named
from torchfake.inspect.build import dtype_named as dtype_named
from torchfake.inspect.report import Report as Report
from torchfake.inspect.report import inspect_target as inspect_target
from torchfake.inspect.targets import Target as Target
from torchfake.inspect.targets import resolve as resolve
from torchfake.inspect.tree import ModuleNode as ModuleNode
from torchfake.inspect.tree import Size as Size
from torchfake.inspect.tree import TensorNode as TensorNode
from torchfake.inspect.tree import read_module as read_module

__all__ = [
    "Built",
    "ModuleNode",
    "Report",
    "Size",
    "Target",
    "TensorNode",
    "build",
    "device_named",
    "dtype_named",
    "inspect_target",
    "read_module",
    "resolve",
]
