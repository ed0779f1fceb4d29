"""Every module of torch's own database runs on fakes, and describes as eager's does.

Forward and backward, in training and in evaluation, for the inputs that torch's own tests use.
What falls short is in a table with its reason; a new failure and a new pass both fail the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.utils import _pytree as pytree

from tests.conftest import describe, describe_tensor
from torchfake import fake_like, fake_mode, is_fake

SHORTFALLS: dict[str, str] = {}
"""Modules that do not describe as eager's, by name: why."""

MAX_SAMPLES = 10
"""Of more inputs (LinearCrossEntropyLoss has hundreds), evenly spaced ones are tested."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning"),
    pytest.mark.filterwarnings("ignore:linear_cross_entropy. .*options:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not:UserWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]


def samples_of(info: ModuleInfo) -> list[tuple[ModuleInput, bool]]:
    """Inputs, and whether they are for training; evenly spaced ones if there are many."""
    samples = [
        (sample, training)
        for training in ((True, False) if info.train_and_eval_differ else (True,))
        for sample in info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
    ]
    step = -(-len(samples) // MAX_SAMPLES)
    return samples[::step]


def on_leaves(tree: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return pytree.tree_map(lambda x: function(x) if isinstance(x, torch.Tensor) else x, tree)


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor without its graph: fake copies have none. Some inputs are made in float64, as
    torch's own tests make that the default dtype.
    """
    dtype = torch.float32 if tensor.dtype is torch.float64 else tensor.dtype
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def run(info: ModuleInfo, given: Any, training: bool) -> tuple[Any, Any]:
    """Build, run forward and backward; what there is to compare, and the output."""
    (make_args, make_kwargs), (args, kwargs) = given
    module = info.module_cls(*make_args, **make_kwargs).train(training)
    output = module(*args, **kwargs)
    seen = describe([output, module])
    differentiable = [t for t in pytree.tree_leaves(output) if getattr(t, "requires_grad", False)]
    if differentiable:
        torch.autograd.backward([t.abs().sum() for t in differentiable])
    inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    gradients = [None if t.grad is None else describe_tensor(t.grad) for t in inputs]
    return [*seen, *describe(module), gradients], output


def outcome(program: Callable[[], Any]) -> Any:
    """What a run gives, or the kind of error that ends it."""
    try:
        return program()
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"


def difference(info: ModuleInfo, sample: ModuleInput, training: bool) -> str | None:
    """How fakes differ from eager for one sample; None if they do not."""
    make, call = sample.constructor_input, sample.forward_input
    given = on_leaves([(make.args, make.kwargs), (call.args, call.kwargs)], leaf)
    copies = on_leaves(given, fake_like)
    torch.manual_seed(0)
    expected = outcome(lambda: run(info, given, training))

    def faked() -> Any:
        with fake_mode():
            return run(info, copies, training)

    got = outcome(faked)
    if isinstance(expected, str) or isinstance(got, str):
        return None if got == expected else f"eager: {expected}\nfake: {got}"
    outputs = [t for t in pytree.tree_leaves(got[1]) if isinstance(t, torch.Tensor)]
    if not all(is_fake(t) for t in outputs):
        return "an output is not fake"
    return None if got[0] == expected[0] else f"eager: {expected[0]}\nfake: {got[0]}"


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(info: ModuleInfo) -> None:
    """Outputs, gradients, parameters and buffers have eager's metadata; errors are eager's."""
    found = [difference(info, sample, training) for sample, training in samples_of(info)]
    failures = [text for text in found if text is not None]
    if info.name in SHORTFALLS:
        assert failures, f"{info.name} passes now: take it out of SHORTFALLS"
        return
    count = f"{len(failures)} of {len(found)} samples differ; the first:\n"
    assert not failures, count + failures[0]


def test_shortfalls_are_in_the_database() -> None:
    """Each entry names a module of the database."""
    assert set(SHORTFALLS) <= {info.name for info in module_db}
