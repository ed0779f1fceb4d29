"""Floating point operations of a forward and a backward pass, by module.

Input: a fake copy that can be run. Output: counts by the full names of modules. Invariant: the
counts are those of torch's own FlopCounterMode, with attention on the CPU and grouped products
where torch has no formula yet; a multiplication and an addition are two, and operators that are no
matrix product, convolution or attention count nothing. Called by: ``summary``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torchfake._dispatch import FakeDispatch, dispatch
from torchfake._torch import kernels
from torchfake.errors import InputsError
from torchfake.inspect.describe.module_names import name_and_ancestors
from torchfake.inspect.run.backward import default_loss, run_backward
from torchfake.inspect.run.module_tracker import ModuleTracker
from torchfake.inspect.run.workload import FakeCopy

aten = torch.ops.aten


class Flops(NamedTuple):
    """The operations of one module and all modules in it."""

    forward: int
    backward: int


def _grouped_product(a: Any, b: Any, *rest: Any, out_shape: Any = None, **more: Any) -> int:
    """The operations of a grouped matrix product, as ``_grouped_mm`` computes it for experts.

    Groups are along the dimension that is summed over, or along that of the rows; either way each
    row is multiplied with one matrix.
    """
    rows, shared = a[-2:]
    groups = a[0] if len(a) == len(b) == 3 else 1
    return int(2 * groups * rows * shared * b[-1])


def _formulas() -> Mapping[Any, Any]:
    """Torch's formulas and ours, by operator; imported on first use, since that takes a while."""
    from torch.utils import flop_counter

    def forward(query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
        return int(flop_counter.sdpa_flop_count(query, key, value))

    def backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
        return int(flop_counter.sdpa_backward_flop_count(grad, query, key, value))

    uncounted = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,  # torch has it from 2.15 on
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
        aten._grouped_mm: _grouped_product,  # not in torch 2.15 either
    }
    own = {op: count for op, count in uncounted.items() if op not in flop_counter.flop_registry}
    counter = flop_counter.FlopCounterMode(display=False, custom_mapping=own)
    formulas: Mapping[Any, Any] = counter.flop_registry
    return formulas


class _FlopCounter(FakeDispatch):
    """A dispatch of operators that counts their operations, with the formulas of torch's counter.

    Torch's FlopCounterMode would see the same operators at ten times the cost, and finds the module
    of a backward operator by the inputs that its forward took by position, which misses most of
    those in transformers; see :mod:`torchfake.inspect.run.module_tracker` for ours.
    """

    def __init__(self, modules: ModuleTracker) -> None:
        super().__init__()
        self.formulas = _formulas()
        self.modules = modules
        self.phase = "forward"
        self.counts: Counter[tuple[str, str]] = Counter()  # by phase and module

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and kernels.is_decomposed_in_cpp(func):
            with self.active():
                return func.decompose(*args, **kwargs)
        result = dispatch(self, func, types, args, kwargs)
        formula = self.formulas.get(getattr(func, "_overloadpacket", func))
        if formula is not None:
            count = formula(*args, **kwargs, out_val=result)
            self.counts[self.phase, self.modules.name] += int(count)
        return result


def count_flops(fake_copy: FakeCopy, modules: ModuleTracker) -> dict[str, Flops]:
    """Run a fake copy forward, and backward if a tensor of its output has a gradient.

    Returns:
        By full name, "" for the root; modules without operations that count are left out.
    """
    counter = _FlopCounter(modules)
    with fake_copy.mode(), counter.active():
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
    found: dict[str, list[int]] = {"": [0, 0]}
    for (phase, name), count in counts.items():
        for ancestor in name_and_ancestors(name):
            found.setdefault(ancestor, [0, 0])[phase == "backward"] += count
    return {name: Flops(*both) for name, both in found.items()}
