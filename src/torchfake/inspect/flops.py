"""Floating point operations of a pass, by module.

Enters: a twin that can be run. Leaves: counts, forward and backward, by the full names of modules.
Invariant: the counts are those of torch's own FlopCounterMode, with attention on the CPU and
grouped products where torch has no formula yet; a multiplication and an addition are two, and what
is no matrix product, convolution or attention counts nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torchfake import _private
from torchfake._dispatch import FakeDispatch, dispatch
from torchfake.errors import InputsError
from torchfake.inspect.running import Running
from torchfake.inspect.steps import default_loss, run_backward
from torchfake.inspect.subject import Twin
from torchfake.inspect.tree import with_those_above

aten = torch.ops.aten


class Flops(NamedTuple):
    """Of one module and all in it."""

    forward: int
    backward: int


def _grouped_product(a: Any, b: Any, *rest: Any, out_shape: Any = None, **more: Any) -> int:
    """Products of the rows, or columns, of one matrix with the group of the other that is theirs.

    Groups are along a dimension that the matrices share, or along that of the rows; either way each
    row meets one matrix.
    """
    rows, shared = a[-2:]
    groups = a[0] if len(a) == len(b) == 3 else 1
    return int(2 * groups * rows * shared * b[-1])


def _formulas() -> Mapping[Any, Any]:
    """Torch's own, by operator; imported when first asked for, since that takes a while."""
    from torch.utils import flop_counter

    def forward(query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
        return int(flop_counter.sdpa_flop_count(query, key, value))

    def backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
        return int(flop_counter.sdpa_backward_flop_count(grad, query, key, value))

    uncounted = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,  # from torch 2.15 on it is
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
        aten._grouped_mm: _grouped_product,  # of experts; not in torch 2.15 either
    }
    own = {op: count for op, count in uncounted.items() if op not in flop_counter.flop_registry}
    counter = flop_counter.FlopCounterMode(display=False, custom_mapping=own)
    formulas: Mapping[Any, Any] = counter.flop_registry
    return formulas


class _Counting(FakeDispatch):
    """The dispatch of a mode that counts too, with the formulas of torch's counter.

    The counter itself would see the same operators, at ten times the cost, and finds the module of
    a backward operation by the inputs that its forward took by position, which misses most of
    those in transformers; see :mod:`torchfake.inspect.running` for ours.
    """

    def __init__(self, running: Running) -> None:
        super().__init__()
        self.formulas = _formulas()
        self.running = running
        self.phase = "forward"
        self.counts: Counter[tuple[str, str]] = Counter()  # by phase and module

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and _private.is_taken_apart(func):
            with self.open():
                return func.decompose(*args, **kwargs)
        result = dispatch(self, func, types, args, kwargs)
        formula = self.formulas.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            count = formula(*args, **kwargs, out_val=result)
            self.counts[self.phase, self.running.name] += int(count)
        return result


def count_flops(twin: Twin, running: Running) -> dict[str, Flops]:
    """Run `twin` forward, and backward where anything has a gradient.

    Returns:
        By full name, "" for the root; modules that do nothing that counts are left out.
    """
    counting = _Counting(running)
    with twin.mode(), counting.open():
        output = twin()
        counting.phase = "backward"
        loss = None
        with contextlib.suppress(InputsError):  # nothing has a gradient
            loss = default_loss(output)
        if loss is not None:
            run_backward(loss)
    return _summed(counting.counts)


def _summed(counts: Mapping[tuple[str, str], int]) -> dict[str, Flops]:
    """Each module's own counts, as those of it and all that is in it."""
    found: dict[str, list[int]] = {"": [0, 0]}
    for (phase, name), count in counts.items():
        for upper in with_those_above(name):
            found.setdefault(upper, [0, 0])[phase == "backward"] += count
    return {name: Flops(*both) for name, both in found.items()}
