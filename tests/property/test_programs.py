"""Generated programs give on fakes what they give in eager: after every step, of every tensor.

Input: programs, drawn by :mod:`tests.property.strategies`. A program runs on fakes, then the same
steps run on real tensors; the descriptions of all tensors after each step are compared as data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from hypothesis import given
from torch import Tensor

from tests.property import operations as ops
from tests.property.arguments import NothingFits, Picks
from tests.property.strategies import Program, Step, programs
from torchfake import fake_mode, is_fake
from torchfake._cache import cache
from torchfake.errors import UnknownValueError

_MAX_POOL_SIZE = 10


OTHER_TYPES = (
    "t_() expects a tensor with",
    "input types can't be cast",
    "zero-dimensional tensor",
    "view_as_complex is only supported for",
)
"""What eager refuses with these messages, meta kernels refuse with another class of error."""


class Description(NamedTuple):
    """The metadata of one tensor, and what autograd knows of it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    layout: torch.layout
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    has_grad_fn: bool
    version: int | None
    is_view: bool
    base: int  # the first tensor alive that is its base; -1 if none is
    is_conj: bool
    is_neg: bool
    alias: int  # the first tensor alive that views the same storage
    storage_bytes: int
    output_nr: int
    is_inference: bool


class Snapshot(NamedTuple):
    """The state of a program after one step."""

    number: int
    step: Step
    error: BaseException | None
    answer: str  # the result, if it was no tensor
    descriptions: list[Description]
    values: list[str | None]  # None where a fake's value is not known


def describe(tensor: Tensor, pool: list[Tensor]) -> Description:
    keys = [_storage_key(t) for t in pool]
    bases = [i for i, t in enumerate(pool) if tensor._base is t]
    return Description(
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.layout,
        tensor.device,
        tensor.requires_grad,
        _or_none(lambda: tensor.is_leaf),
        _or_none(lambda: tensor.grad_fn is not None),
        _or_none(lambda: tensor._version),  # an inference tensor has none
        tensor._is_view(),
        bases[0] if bases else -1,
        tensor.is_conj(),
        tensor.is_neg(),
        keys.index(_storage_key(tensor)),
        tensor.untyped_storage().nbytes(),
        tensor.output_nr,
        tensor.is_inference(),
    )


def _storage_key(tensor: Tensor) -> int:
    """Equal of tensors that share memory, some of which may be fakes of memory that is real."""
    deferred: Any = tensor._fake_storage.deferred if is_fake(tensor) else None
    if deferred is None or deferred.real is None:
        return tensor.untyped_storage()._cdata
    return deferred.real._cdata  # type: ignore[no-any-return]


def _or_none(query: Callable[[], Any]) -> Any:
    """The result; None where autograd raises: for a view made by an operator with several results,
    after its base was written."""
    try:
        return query()
    except RuntimeError:
        return None


def value(tensor: Tensor) -> str | None:
    """A value as text: equal texts are equal bits, but for the payload of a NaN."""
    if is_fake(tensor) and not tensor._fake_storage.is_known:
        return None
    try:
        return repr(tensor.tolist())
    except RuntimeError:  # a lazy conjugate that autograd refuses to resolve
        return None


def run(
    program: list[tuple[int, Step]],
    pool: list[Tensor],
    context_of: Callable[[Step], AbstractContextManager[Any]] = lambda step: nullcontext(),
) -> list[Snapshot]:
    """Run numbered steps on the tensors of `pool`, to which results are added."""
    snapshots = []
    for number, step in program:
        torch.manual_seed(number)  # a fake's draws are eager's if nothing was drawn before
        error, answer = None, ""
        try:
            with context_of(step):
                result = ops.OPERATIONS[step.name](Picks(step.picks, pool))
        except NothingFits:
            continue
        except Exception as raised:
            error, result = raised.with_traceback(None), None
        if isinstance(result, (Tensor, tuple, list)):
            answer = _add_to_pool(result, pool)
        elif result is not None:
            answer = repr(result)
        descriptions, values = [describe(t, pool) for t in pool], [value(t) for t in pool]
        snapshots.append(Snapshot(number, step, error, answer, descriptions, values))
    return snapshots


def _add_to_pool(result: Any, pool: list[Tensor]) -> str:
    """Add the tensors of a result to the pool, the eldest making room; other items are text."""
    items = [result] if isinstance(result, Tensor) else list(result)
    fresh = [i for i in items if isinstance(i, Tensor) and not any(i is t for t in pool)]
    pool.extend(fresh[:3])
    del pool[: max(0, len(pool) - _MAX_POOL_SIZE)]
    return repr([i for i in items if not isinstance(i, Tensor)])


def assert_alike(fake: list[Snapshot], real: list[Snapshot]) -> str:
    """Assert that the states of fakes are those of real tensors, up to the first known shortfall.

    Returns:
        The reason of that shortfall, or nothing.
    """
    assert len(fake) == len(real)
    for ours, theirs in zip(fake, real, strict=True):
        reason = shortfall(ours, theirs)
        if reason:
            return reason
        message = f"{ours.step}: {ours.error!r} where eager has {theirs.error!r}"
        assert type(ours.error) is type(theirs.error), message
        assert ours.answer == theirs.answer, ours.step
        for own, true in zip(ours.descriptions, theirs.descriptions, strict=True):
            assert own == true, (ours.step, _differences(own, true))
        for known, true in zip(ours.values, theirs.values, strict=True):
            assert known is None or known == true, ours.step
    return ""


def shortfall(ours: Snapshot, theirs: Snapshot) -> str:
    """The reason why fakes may differ here, or nothing."""
    if type(ours.error) is not type(theirs.error):
        return next((text for text in OTHER_TYPES if text in str(theirs.error)), "")
    fields = {
        name: (own, true)
        for a, b in zip(ours.descriptions, theirs.descriptions, strict=False)
        for name, (own, true) in _differences(a, b).items()
    }
    if fields and ours.error is not None and ours.step.name.endswith("_out"):
        return "out= resized before the error"
    if fields.keys() == {"stride"}:
        return _excused_stride(ours, theirs)
    return ""


def _excused_stride(ours: Snapshot, theirs: Snapshot) -> str:
    if ours.step.name.endswith("_out"):
        return "layout of a resized out="
    pairs = zip(ours.descriptions, theirs.descriptions, strict=True)
    return "strides of no consequence" if all(_are_strides_equivalent(*p) for p in pairs) else ""


def _are_strides_equivalent(own: Description, true: Description) -> bool:
    """Whether two strides differ only in dims of length one, or of tensors without elements."""
    steps = zip(own.shape, own.stride, true.stride, strict=True)
    return 0 in own.shape or all(n == 1 or mine == eager for n, mine, eager in steps)


def _differences(own: Description, real: Description) -> dict[str, tuple[Any, Any]]:
    pairs = zip(own._fields, own, real, strict=True)
    return {name: (mine, true) for name, mine, true in pairs if mine != true}


def steps_of_known_values(snapshots: list[Snapshot]) -> list[tuple[int, Step]]:
    """The steps but for those that read unknown values."""
    unknown = {m.number for m in snapshots if isinstance(m.error, UnknownValueError)}
    assert all(m.step.name in ops.READING for m in snapshots if m.number in unknown), snapshots[-1]
    return [(m.number, m.step) for m in snapshots if m.number not in unknown]


def assert_like_eager(first: Program, then: Program = ()) -> str:
    """`first` inside a mode and `then` after it, against eager; the shortfall met, if any."""
    numbered = list(enumerate(first + then))
    pool: list[Tensor] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of resized outputs, of imaginary parts cast away
        with fake_mode():
            snapshots = run(numbered[: len(first)], pool)
        snapshots += run(numbered[len(first) :], pool)
        assert all(map(is_fake, pool))
        real = run(steps_of_known_values(snapshots), [])
    unknown = {m.number for m in snapshots} - {
        number for number, _ in steps_of_known_values(snapshots)
    }
    return assert_alike([m for m in snapshots if m.number not in unknown], real)


INSIDE = (
    ops.FACTORIES, ops.FACTORIES, ops.LIKES, ops.VIEWS, ops.VIEWS, ops.IN_PLACE, ops.IN_PLACE,
    ops.CONVERSIONS, ops.COMPUTED, ops.READING, ops.AUTOGRAD,
)  # fmt: skip
AFTER = INSIDE[2:]


@given(first=programs(ops.FACTORIES, min_steps=1, max_steps=3), then=programs(*INSIDE))
def test_inside(first: Program, then: Program) -> None:
    assert_like_eager(first + then)


@given(first=programs(ops.FACTORIES, min_steps=1, max_steps=4), then=programs(*AFTER))
def test_after_the_mode(first: Program, then: Program) -> None:
    assert_like_eager(first, then)


@given(first=programs(ops.FACTORIES, min_steps=1, max_steps=3), then=programs(*INSIDE))
def test_cached(first: Program, then: Program) -> None:
    """What an empty cache gives, a warm one gives again."""
    cache.clear()
    cold, warm, again = (_snapshots_inside(first + then) for _ in range(3))
    assert warm == cold
    assert again == cold


def _snapshots_inside(program: Program) -> list[Any]:
    with warnings.catch_warnings(), fake_mode():
        warnings.simplefilter("ignore")
        snapshots = run(list(enumerate(program)), [])
    return [m._replace(error=type(m.error)) for m in snapshots]
