"""Programs of views and writes, materialized tensor by tensor, give what they give in eager.

Input: programs, drawn by :mod:`tests.property.strategies`, whose steps run with grad mode, without,
or in inference mode; which tensors are then materialized, in which order; and a program that goes
on with what is real and what is not yet. The same steps run on real tensors. Compared is all that
autograd knows of each tensor, then values and gradients, of fakes of real memory too.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.property import operations as ops
from tests.property.arguments import Picks
from tests.property.strategies import Program, Step, programs
from tests.property.test_programs import (
    Description,
    Snapshot,
    _differences,
    describe,
    run,
    shortfall,
)
from torchfake import deferred_mode, is_fake, materialize_tensor
from torchfake.errors import MaterializeError

BASES: dict[str, ops.Operation] = {
    "normal_base": lambda p: torch.randn(p.of(((4, 4), (2, 3, 4), (6,), (3, 4)))),
    "leaf_base": lambda p: torch.randn(4, 4).requires_grad_(),
    "parameter_base": lambda p: nn.Parameter(torch.ones(p.of(((4, 4), (6,), (2, 3, 4))))),
    "frozen_base": lambda p: nn.Parameter(torch.arange(12.0).view(3, 4), requires_grad=False),
    "buffer_base": lambda p: nn.Buffer(torch.arange(8)),
    "complex_base": lambda p: torch.randn(3, 4, dtype=torch.complex64),
    "column_major_base": lambda p: torch.empty_strided((3, 4), (1, 3)).fill_(2),
    "shared_base": lambda p: torch.zeros(5).expand(3, 5),
    "half_base": lambda p: torch.ones(4, 4, dtype=torch.bfloat16),
}
"""All of known or drawn values: what nobody has written has none to compare."""


def _sections(p: Picks, function: Any) -> Any:
    tensor = p.tensor(lambda t: t.dim() > 0)
    return function(tensor, p.of((2, 1, [1], [1, 2])))


def _of_dim(p: Picks, function: Any, num_dims: int) -> Any:
    return function(p.tensor(lambda t: t.dim() >= num_dims), p.of((1, 2, [1])))


MANY_VIEWS: dict[str, ops.Operation] = {
    "chunk": ops.VIEWS["chunk"],
    "split": ops.VIEWS["split"],
    "unbind": ops.VIEWS["unbind"],
    "split_sizes": lambda p: p.tensor(lambda t: t.dim() > 0 and t.shape[0] == 4).split([1, 3]),
    "tensor_split": lambda p: _sections(p, torch.tensor_split),
    "hsplit": lambda p: _of_dim(p, torch.hsplit, 1),
    "vsplit": lambda p: _of_dim(p, torch.vsplit, 2),
    "dsplit": lambda p: _of_dim(p, torch.dsplit, 3),
    "unsafe_chunk": lambda p: p.tensor(lambda t: t.dim() > 0).unsafe_chunk(2),
    "unsafe_split": lambda p: p.tensor(lambda t: t.dim() > 0).unsafe_split(2),
    "swapdims": lambda p: ops._dims(p, "swapdims"),
    "parameter_of": lambda p: nn.Parameter(p.floating()),
    "frozen_parameter_of": lambda p: nn.Parameter(p.tensor(), requires_grad=False),
    "iterate": lambda p: list(p.tensor(lambda t: t.dim() > 0)),
    "alias": lambda p: torch.ops.aten.alias(p.tensor()),
}

WRITES: dict[str, ops.Operation] = {
    name: ops.IN_PLACE[name]
    for name in (
        "add_number_", "mul_", "copy_", "fill_", "zero_", "neg_", "normal_", "uniform_", "t_",
        "transpose_", "squeeze_", "unsqueeze_", "set_data", "setitem",
    )
}  # fmt: skip

_STATE: dict[str, ops.Operation] = {
    **{n: ops.AUTOGRAD[n] for n in ("requires_grad_", "grad")},
    "set_grad": lambda p: _set_grad(p),
    "clone": ops.CONVERSIONS["clone"],
    "add_number": ops.COMPUTED["add_number"],
}


_BACKWARD = {name: ops.AUTOGRAD[name] for name in ("backward", "retain_grad", "grad")}


def _set_grad(p: Picks) -> None:
    tensor = p.tensor(lambda t: t.requires_grad and t.is_leaf)
    tensor.grad = torch.ones_like(tensor.detach()) if p.below(3) else tensor.detach()[...]


TABLES = (ops.VIEWS, ops.VIEWS, MANY_VIEWS, MANY_VIEWS, WRITES, WRITES, _STATE)
ops.OPERATIONS.update({**BASES, **MANY_VIEWS, **_STATE})


def context_of(step: Step) -> AbstractContextManager[Any]:
    kind = step.picks[-1] % 16
    if kind == 15 and not step.name.startswith("unsafe"):  # which are views in inference mode
        return torch.inference_mode()
    return torch.set_grad_enabled(kind >= 9)


@settings(max_examples=settings().max_examples // 6)  # a program is run three times
@given(
    first=programs(BASES, min_steps=1, max_steps=2),
    then=programs(*TABLES, max_steps=10),
    outside=st.integers(0, 4),
    order=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    whole=st.booleans(),
    after=programs(*TABLES, _BACKWARD, min_steps=0, max_steps=6),
)
def test_any_subset_in_any_order(
    first: Program, then: Program, outside: int, order: list[int], whole: bool, after: Program
) -> None:
    """The last `outside` steps run after the mode was left, on tensors that are still deferred."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(first, then, outside, order, whole, after)


def check(
    first: Program, then: Program, outside: int, order: list[int], whole: bool, after: Program
) -> str:
    """The reason for which the program was not compared to its end, or nothing."""
    numbered = list(enumerate(first + then))
    inside = max(len(first), len(numbered) - outside)
    made: list[Tensor] = []
    with deferred_mode():
        ours = run(numbered[:inside], made, context_of)
    ours += run(numbered[inside:], made, context_of)
    real: list[Tensor] = []
    if reason := _first_shortfall(ours, run(numbered, real, context_of)):
        return reason
    for index in [*order, *(range(len(made)) if whole else ())]:
        if index < len(made):
            _materialize(made, real, index)
    assert_same_states(made, real)
    more = list(enumerate(after, len(numbered)))
    if any(map(is_fake, made)):
        return _check_mixed(more, made, real)
    ours, theirs = run(more, made, context_of), run(more, real, context_of)
    if reason := _first_shortfall(ours, theirs):
        return reason
    assert_same_states(made, real)
    return ""


def _first_shortfall(ours: list[Snapshot], theirs: list[Snapshot]) -> str:
    for own, true in zip(ours, theirs, strict=True):
        if reason := shortfall(own, true):
            return reason
        assert type(own.error) is type(true.error), (own.step, own.error, true.error)
        if "Inplace update to inference" in str(true.error):
            return "torch has written or changed metadata before it refused"
    return ""


def _check_mixed(more: list[tuple[int, Step]], made: list[Tensor], real: list[Tensor]) -> str:
    """Go on with real tensors and fakes of the same memory: writes reach each other.

    What autograd counts is not shared between the two; torch gives no real tensor a fake's memory.
    """
    more = [(i, step) for i, step in more if not step.name.startswith("set_")]
    for own, true in zip(run(more, made, context_of), run(more, real, context_of), strict=True):
        if type(own.error) is not type(true.error):
            return "refused in one of the two"
    if any("was written in place since" in _value(tensor) for tensor in made):
        return "a real tensor that is in a record was written"
    _assert_same_values(made, real)
    return "some are still fake"


def _materialize(made: list[Tensor], real: list[Tensor], index: int) -> None:
    try:
        materialize_tensor(made[index])
    except MaterializeError:
        assert _has_history(real[index]) or any(map(_has_history, real)), (index, made, real)
    else:
        assert not is_fake(made[index])


def _has_history(tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # it is not told any more
        return tensor.requires_grad


def assert_same_states(made: list[Tensor], real: list[Tensor]) -> None:
    for index, (own, true) in enumerate(zip(made, real, strict=True)):
        described = _comparable(describe(own, made), own, made)
        expected = _comparable(describe(true, real), own, made)
        assert described == expected, (index, _differences(described, expected), made, real)
        name = type(true).__name__
        assert type(own).__name__ in (name, "FakeTensor", f"Fake{name}")
        if described.requires_grad and described.is_leaf and not is_fake(own):
            _assert_same_gradient(own, true)
    _assert_same_values(made, real)


def _comparable(description: Description, own: Tensor, made: list[Tensor]) -> Description:
    """Without what a tensor cannot have in common with one that is still fake."""
    if description.is_leaf is None:  # forbidden: the number of an output goes with the history
        description = description._replace(output_nr=0)
    if any(is_fake(tensor) or tensor.is_inference() for tensor in made):
        description = description._replace(version=0)  # of a clone of an inference tensor, too
    if is_fake(own) or (description.base >= 0 and is_fake(made[description.base])):
        description = description._replace(base=-1)
    return description


def _assert_same_values(made: list[Tensor], real: list[Tensor]) -> None:
    for index, (own, true) in enumerate(zip(made, real, strict=True)):
        assert _value(own) == _value(true), (index, made, real)


def _value(tensor: Tensor) -> str:
    """As text, or the error: of a view that autograd forbids, no lazy conjugate is resolved."""
    try:
        return repr(tensor.tolist())
    except RuntimeError as error:
        return str(error)


def _assert_same_gradient(own: Tensor, true: Tensor) -> None:
    assert (own.grad is None) == (true.grad is None)
    if own.grad is not None and true.grad is not None:
        assert repr(own.grad.tolist()) == repr(true.grad.tolist())
