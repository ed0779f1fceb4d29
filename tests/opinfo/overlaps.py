"""Torch's operator database with written memory that repeats or that is read: who refuses it.

Input: an OpInfo and a way in which memory is shared. Output: how many calls there were, and for
each that differs what differed. What is compared: whether the call is refused at once because of
where its elements lie, in a fake mode (with unknown values) and in a deferred one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from tests.opinfo.harness import Tally, samples
from torchfake import deferred_mode, fake_like, fake_mode

MESSAGES = ("single memory location", "doesn't match the broadcast shape")

Place = tuple[int, tuple[int, ...]]  # where a tensor begins, and its strides


def _contiguous(size: Any) -> tuple[int, ...]:
    return torch.empty(size, device="meta").stride()


def _repeated(size: Any) -> tuple[int, ...] | None:
    """The strides of `size` with the first dim that is longer than one expanded."""
    dim = next((i for i, n in enumerate(size) if n > 1), None)
    if dim is None:
        return None
    one = [1 if i == dim else n for i, n in enumerate(size)]
    return torch.empty(one, device="meta").expand(size).stride()


def _sliding(size: Any) -> tuple[int, ...] | None:
    """All strides are one: windows that overlap, which torch does not look for."""
    return (1,) * len(size) if sum(n > 1 for n in size) > 1 else None


def repeated(written: Tensor, other: Tensor | None) -> list[Place] | None:
    stride = _repeated(written.shape)
    return None if other is not None or stride is None else [(0, stride)]


def sliding(written: Tensor, other: Tensor | None) -> list[Place] | None:
    stride = _sliding(written.shape)
    return None if other is not None or stride is None else [(0, stride)]


def shifted(written: Tensor, other: Tensor | None) -> list[Place] | None:
    if other is None or other.dtype != written.dtype:
        return None
    return [(0, _contiguous(written.shape)), (1, _contiguous(other.shape))]


def same_begin(written: Tensor, other: Tensor | None) -> list[Place] | None:
    places = shifted(written, other)
    return None if places is None else [(0, stride) for _, stride in places]


def apart(written: Tensor, other: Tensor | None) -> list[Place] | None:
    places = shifted(written, other)
    return None if places is None else [places[0], (written.numel(), places[1][1])]


def gapped(written: Tensor, other: Tensor | None) -> list[Place] | None:
    """Every other element of the same memory: torch does not look where these lie."""
    places = shifted(written, other)
    return None if places is None else [(0, tuple(2 * s for s in st)) for _, st in places]


WAYS: dict[str, Callable[[Tensor, Tensor | None], list[Place] | None]] = {
    f.__name__: f for f in (repeated, sliding, shifted, same_begin, apart, gapped)
}


def _placed(written: Tensor, other: Tensor | None, places: list[Place]) -> Callable[..., Any]:
    """A function that makes the two in one piece of memory, inside of a mode or not."""
    shared = [written] if other is None else [written, other]
    needed = 1 + written.numel() + max(
        offset + sum((n - 1) * step for n, step in zip(t.shape, stride, strict=True))
        for t, (offset, stride) in zip(shared, places, strict=True)
    )  # fmt: skip
    flat = torch.ones(needed, dtype=written.dtype)

    def make(copy: Callable[[Tensor], Tensor]) -> list[Tensor]:
        base = copy(flat)
        views = zip(shared, places, strict=True)
        return [base.as_strided(t.shape, stride, offset) for t, (offset, stride) in views]

    return make


def _calls(op: Any, sample: Any, way: str) -> Iterator[Callable[[Any], Any]]:
    """Functions of how a tensor is copied: the operator in place, and with ``out=``."""
    value, args, kwargs = sample
    others = [t for t in tree_flatten((args, kwargs))[0] if _is_strided(t) and t is not value]
    if op.inplace_variant is not None and _is_strided(value):
        for other in (None, *others):
            places = WAYS[way](value, other)
            if places is not None:
                yield _in_place(op, sample, other, _placed(value, other, places))
    if op.supports_out:
        result = op.op(value, *args, **kwargs)
        if not _is_strided(result) or result.dim() == 0:
            return
        for other in (None, *others, value):
            if other is not None and not _is_strided(other):
                continue
            places = WAYS[way](result, other)
            if places is not None:
                yield _with_out(op, sample, other, _placed(result, other, places))


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_conj()


def _in_place(op: Any, sample: Any, other: Tensor | None, make: Any) -> Callable[[Any], Any]:
    def call(copy: Any) -> None:
        written, *shared = make(copy)
        _, args, kwargs = _exchanged(sample, other, shared, copy)
        op.inplace_variant(written, *args, **kwargs)

    return call


def _with_out(op: Any, sample: Any, other: Tensor | None, make: Any) -> Callable[[Any], Any]:
    def call(copy: Any) -> None:
        out, *shared = make(copy)
        value, args, kwargs = _exchanged(sample, other, shared, copy)
        kwargs.pop("device", None)  # C++ compares it with the carrier of `out`
        op.op(value, *args, **kwargs, out=out)

    return call


def _exchanged(sample: Any, other: Tensor | None, shared: list[Tensor], copy: Any) -> Any:
    """The sample with the tensor that shares memory in its place, and copies of all else."""

    def exchange(leaf: Any) -> Any:
        if not _is_strided(leaf):
            return leaf
        return shared[0] if other is not None and leaf is other else copy(leaf)

    return tree_map(exchange, sample)


def tally(op: Any, dtype: torch.dtype, way: str, limit: int | None) -> Tally:
    """The calls of the first samples of `op`, all without `limit`."""
    if dtype not in op.supported_dtypes("cpu"):
        return Tally(0, [])
    num_calls, failures = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, sample in enumerate(samples(op, dtype, False)):
            if limit is not None and num_calls >= limit:
                break
            try:
                calls = list(_calls(op, sample, way))
            except Exception:
                continue  # eager cannot run it: there is nothing to equal
            for call in calls:
                expected = _outcome(call, torch.clone, nullcontext())
                if expected is not None:
                    num_calls += 1
                    failures += [f"{index}: {d}" for d in _differences(call, expected)]
    return Tally(num_calls, failures)


def _differences(call: Any, expected: str) -> Iterator[str]:
    for name, copy, mode in (
        ("fake", fake_like, fake_mode()),
        ("deferred", torch.clone, deferred_mode()),
    ):
        found = _outcome(call, copy, mode) or "accepted"
        if found != expected:
            yield f"{name}: {found}, {expected} in eager"


def _outcome(call: Any, copy: Any, mode: Any) -> str | None:
    """How a call is refused for where elements lie, or "accepted"; None for another error."""
    torch.manual_seed(0)
    with mode:
        try:
            call(copy)
        except Exception as error:
            message = next((m for m in MESSAGES if m in str(error)), None)
            return None if message is None else f"{type(error).__name__}: {message}"
    return "accepted"
