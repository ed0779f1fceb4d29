"""Floating point operations of a forward and a backward pass, by module.

Input: a fake copy that can be run. Output: counts by the full names of modules, and the operators
whose FLOPs are not known. Invariant: the counts are those of torch's FlopCounterMode, plus those of
products that torch has no formula for; a multiply-add is two FLOPs, and operators that are bound by
memory count as zero.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from torchfake.errors import InputsError
from torchfake.inspect.arithmetic.formulas import flops_of
from torchfake.inspect.arithmetic.moved_bytes import memory_of
from torchfake.inspect.arithmetic.uncounted import Uncounted, is_uncounted, uncounted_of
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.records.module_names import name_and_ancestors
from torchfake.inspect.steps.backward import default_loss, run_backward
from torchfake.observe import Observer, RunningModules, observing


class _Passes(NamedTuple):
    forward: int
    backward: int


class Flops(_Passes):
    """The FLOPs of one module and all modules in it, forward and backward.

    Attributes:
        recomputed: the part of the backward FLOPs that repeats the forward pass: in checkpointed
            modules, and in fused attention the product of queries and keys.
    """

    recomputed: int

    def __new__(cls, forward: int, backward: int, recomputed: int = 0) -> Flops:
        made = super().__new__(cls, forward, backward)
        made.recomputed = recomputed
        return made

    @property
    def hardware(self) -> int:
        """Hardware FLOPs: all FLOPs that are executed, recomputation included."""
        return self.forward + self.backward

    @property
    def model(self) -> int:
        """Model FLOPs: all FLOPs without recomputation (PaLM, Chowdhery et al. 2022, app. B)."""
        return self.hardware - self.recomputed

    def to_dict(self) -> dict[str, int]:
        """All counts by name, as a dict for JSON."""
        both = {"hardware": self.hardware, "model": self.model}
        return {**self._asdict(), "recomputed": self.recomputed, **both}


class _FlopCounter(Observer):
    """Counts the FLOPs of operators, with the formulas of torch's counter.

    torch's FlopCounterMode is slower, and attributes a backward operator to a module by the
    positional inputs of the module's forward, which misses most modules of transformers;
    :class:`torchfake.observe.RunningModules` finds them.
    """

    modules: RunningModules
    sees_storages = False

    def __init__(self, modules: RunningModules) -> None:
        super().__init__()
        self.modules = modules
        self.phase = "forward"
        self.counts: Counter[tuple[str, str]] = Counter()  # by phase and module
        self.uncounted: list[tuple[str, int]] = []  # calls: the operator's name and the bytes

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        flops = flops_of(func, args, kwargs, result)
        if flops is None:
            if result is not NotImplemented and is_uncounted(func):
                memory = memory_of(func, args, kwargs, result)
                if memory.written:
                    self.uncounted.append((memory.packet, memory.num_bytes))
            return
        name = self.modules.name
        self.counts[self.phase, name] += flops.total
        if self.phase == "backward":
            again = self.modules.is_recomputing
            self.counts["recomputed", name] += flops.total if again else flops.recomputed


class CountedFlops(NamedTuple):
    """The FLOPs of a run."""

    by_module: dict[str, Flops]  # by full name, "" for the root; modules without FLOPs are left out
    uncounted: tuple[Uncounted, ...]  # the operators whose FLOPs are not known


def count_flops(fake_copy: FakeCopy) -> CountedFlops:
    """Run a fake copy forward, and backward if a tensor of its output requires a gradient."""
    modules = RunningModules(fake_copy.module, sees_direct_calls=True)
    counter = _FlopCounter(modules)
    with fake_copy.mode(), observing(counter):
        output = fake_copy()
        counter.phase = "backward"
        loss = None
        with contextlib.suppress(InputsError):  # no output requires a gradient
            loss = default_loss(output)
        if loss is not None:
            run_backward(loss)
    return CountedFlops(_inclusive(counter.counts), uncounted_of(counter.uncounted))


def _inclusive(counts: Mapping[tuple[str, str], int]) -> dict[str, Flops]:
    """Add the counts of each module to all modules that contain it."""
    found: dict[str, list[int]] = {"": [0, 0, 0]}
    for (phase, name), count in counts.items():
        for ancestor in name_and_ancestors(name):
            found.setdefault(ancestor, [0, 0, 0])[_COUNTED.index(phase)] += count
    return {name: Flops(*each) for name, each in found.items()}


_COUNTED = ("forward", "backward", "recomputed")
