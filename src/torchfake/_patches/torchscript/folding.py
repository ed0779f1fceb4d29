"""What writes values into graphs or prints them, in a mode: frozen modules, constants.

Input: functions of C++ that compute what is constant in a graph. Output: the same values as outside
of modes. Invariant: a constant is a fake only if it is made of fakes that the script has.
"""

from __future__ import annotations

from typing import Any

from torchfake._core import modes
from torchfake._patches import while_fakes_live
from torchfake._patches.patch import replacing_in_modes
from torchfake._torch import dispatcher
from torchfake._torch.compiler import scripts
from torchfake._torch.compiler.python_functions import Replacement


@replacing_in_modes
def as_outside_modes(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A function that computes values and writes them into a graph, prints it, or reads it from a
    file: what they are made of is real, but for the fakes that are in the graph. It inlines the
    graphs that are called only where scripts are optimized.
    """
    before = modes.thread.modes[0].optimizes_before
    with dispatcher.in_fake_slot(None), scripts.optimizing(before):
        return original(*args, **kwargs)


def _replacements() -> list[Replacement]:
    folding = [*((scripts.bindings, name) for name in scripts.FOLDING), *scripts.PRINTING]
    return [(owner, name, as_outside_modes) for owner, name in folding]


while_fakes_live.replacements["torch.jit.frontend"] = _replacements
