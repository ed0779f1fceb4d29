"""Floating point operations of a forward and a backward pass, by module.

Input: a fake copy that can be run. Output: counts by the full names of modules. Invariant: the
counts are those of torch's own FlopCounterMode, with attention on the CPU and grouped products
where torch has no formula yet; a multiplication and an addition are two, and operators that are no
matrix product, convolution or attention count nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.records.module_names import name_and_ancestors
from torchfake.inspect.steps.backward import default_loss, run_backward
from torchfake.inspect.timing.formulas import flop_formulas, recomputed_flops
from torchfake.observe import Observer, RunningModules, observing


class _Passes(NamedTuple):
    forward: int
    backward: int


class Flops(_Passes):
    """The operations of one module and all modules in it, forward and backward.

    Attributes:
        recomputed: those of the backward pass that repeat some of the forward pass: what
            checkpointing runs again, and in fused attention the product of queries and keys.
    """

    recomputed: int

    def __new__(cls, forward: int, backward: int, recomputed: int = 0) -> Flops:
        made = super().__new__(cls, forward, backward)
        made.recomputed = recomputed
        return made

    @property
    def hardware(self) -> int:
        """Hardware FLOPs: all that run, recomputation included."""
        return self.forward + self.backward

    @property
    def model(self) -> int:
        """Model FLOPs: those that the model needs, without recomputation (PaLM, Chowdhery et al.
        2022, appendix B).
        """
        return self.hardware - self.recomputed

    def to_dict(self) -> dict[str, int]:
        """All of these by name, ready for JSON."""
        both = {"hardware": self.hardware, "model": self.model}
        return {**self._asdict(), "recomputed": self.recomputed, **both}


class _FlopCounter(Observer):
    """Counts the operations of operators, with the formulas of torch's counter.

    Torch's FlopCounterMode would see the same operators at ten times the cost, and finds the module
    of a backward operator by the inputs that its forward took by position, which misses most of
    those in transformers; :class:`torchfake.observe.RunningModules` does not.
    """

    modules: RunningModules
    sees_storages, sees_parts = False, True

    def __init__(self, modules: RunningModules) -> None:
        super().__init__()
        self.formulas = flop_formulas()
        self.modules = modules
        self.phase = "forward"
        self.counts: Counter[tuple[str, str]] = Counter()  # by phase and module

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        formula = self.formulas.get(getattr(func, "_overloadpacket", func))
        if formula is None:
            return
        count = int(formula(*args, **kwargs, out_val=result))
        name = self.modules.name
        self.counts[self.phase, name] += count
        if self.phase == "backward":
            again = self.modules.is_recomputing
            repeated = count if again else recomputed_flops(func, args, count)
            self.counts["recomputed", name] += repeated


def count_flops(fake_copy: FakeCopy) -> dict[str, Flops]:
    """Run a fake copy forward, and backward if a tensor of its output has a gradient.

    Returns:
        By full name, "" for the root; modules without operations that count are left out.
    """
    counter = _FlopCounter(RunningModules(fake_copy.module))
    with fake_copy.mode(), observing(counter):
        output = fake_copy()
        counter.phase = "backward"
        loss = None
        with contextlib.suppress(InputsError):  # nothing has a gradient
            loss = default_loss(output)
        if loss is not None:
            run_backward(loss)
    return _inclusive(counter.counts)


def _inclusive(counts: Mapping[tuple[str, str], int]) -> dict[str, Flops]:
    """Counts of each module's own operations, as counts that include the modules in it."""
    found: dict[str, list[int]] = {"": [0, 0, 0]}
    for (phase, name), count in counts.items():
        for ancestor in name_and_ancestors(name):
            found.setdefault(ancestor, [0, 0, 0])[_COUNTED.index(phase)] += count
    return {name: Flops(*each) for name, each in found.items()}


_COUNTED = ("forward", "backward", "recomputed")
