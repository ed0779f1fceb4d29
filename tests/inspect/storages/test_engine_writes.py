"""Peaks of backward passes against the memory that C++ allocates, without any mode.

torch's profiler sees each allocation of the CPU's allocator, those of temporary memory of kernels
included. So the cases are operators whose kernels need none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import ProfilerConfig, ProfilerState
from torch.autograd import _disable_profiler_legacy as end_profile
from torch.autograd import _enable_profiler_legacy as begin_profile
from torch.profiler import _ExperimentalConfig

from torchfake.inspect import estimate

Step = Callable[[], Any]


def allocated_peak(step: Step) -> int:
    """The most bytes that a step holds at once, beside what existed before it."""
    step()  # gradients of the first step stay out of the second
    begin_profile(
        ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    )
    try:
        step()
    finally:
        threads = end_profile()
    held = peak = 0
    for event in (event for events in threads for event in events):
        if event.kind() == "memory_alloc":
            held += event.cpu_memory_usage()
            peak = max(peak, held)
    return peak


def estimated_peak(step: Step) -> int:
    found = estimate(step)
    existed = [not op for op in found.lives.op]
    return found.peak_bytes - int(found.lives.num_bytes[existed].sum())


def weights(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True)


ROWS, TABLE = torch.tensor([[3], [5], [0], [1]]), torch.tensor([3, 1, 1, 0, 2])
FORMULAS = {
    "gather": lambda x: x.gather(1, ROWS),
    "take_along_dim": lambda x: torch.take_along_dim(x, ROWS, 1),
    "index": lambda x: x[TABLE],
    "index_select": lambda x: x.index_select(0, TABLE),
    "take": lambda x: x.take(TABLE),
    "max": lambda x: x.max(1).values,
    "median": lambda x: x.median(1).values,
    "mode": lambda x: x.mode(1).values,
    "topk": lambda x: x.topk(3, 1).values,
    "cummax": lambda x: x.cummax(1).values,
    "trace": lambda x: x[:4, :4].clone().trace(),
    "unfold": lambda x: x.unfold(1, 2, 2).exp(),
    "fill": lambda x: x.masked_fill(x.detach() > 0.5, 0.0),
}
"""Formulas of gradients that write into zeros, or into new memory in both cases."""


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.add(grad)


SUMS = {
    "residual": lambda x: x + x.tanh(),
    "three": lambda x: x.sin() + x.cos() + x.tanh(),
    "slices": lambda x: x[:, :3] + x[:, 3:],
    "split": lambda x: torch.cat([part.exp() for part in x.split(2, 1)], 1),
    "differences": lambda x: x.diff(dim=1),
    "held by a hook": lambda x: _kept(x.neg()),
    "strided first": lambda x: x.t().contiguous().sin().t() + x.sum(1, keepdim=True).expand(4, 6),
    "a function of the user": lambda x: Doubled.apply(x.neg()),
    "moments": lambda x: sum(torch.var_mean(x, 1)),
    "other dtype": lambda x: x.double().sum().float() + x.sum(),
}
"""Functions in whose backward pass gradients of one tensor meet."""


def _kept(y: torch.Tensor) -> torch.Tensor:
    y.retain_grad()
    return y.sin() + y.cos()


@pytest.mark.parametrize("name", [*FORMULAS, *SUMS])
def test_peaks_are_those_of_plain_tensors(name: str) -> None:
    function, x = {**FORMULAS, **SUMS}[name], weights(4, 6)

    def step() -> None:
        function(x.neg()).sum().backward()
        x.grad = None

    assert estimated_peak(step) == allocated_peak(step)


def test_the_gradient_of_gathered_scores_is_held_once() -> None:
    """The log-probabilities of tokens: what a loss of reinforcement learning begins with."""
    scores, tokens = weights(32, 4096), torch.randint(4096, (32, 1))

    def step() -> None:
        scores.log_softmax(-1).gather(1, tokens).sum().backward()
        scores.grad = None

    assert estimated_peak(step) == allocated_peak(step)


def test_a_product_with_itself_is_counted_high() -> None:
    """The engine adds up two gradients that one node has returned: not told from a formula's sum,
    which takes new memory.
    """
    x = weights(4, 6)

    def step() -> None:
        y = x.neg()
        (y * y).sum().backward()
        x.grad = None

    assert estimated_peak(step) == allocated_peak(step) + x.nbytes
