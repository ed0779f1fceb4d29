"""Runs torch's own operator database recorded, and compares what it is made real to with eager.

Input: an OpInfo, a dtype, a variant and a way in which the inputs come about. Output: how many
samples there were, and for each that differs what differed. A sample counts when eager can run it.
What is compared: shape, dtype, strides, offset, conjugate and negative bits, every byte, of the
results and of the inputs after the call, and the state of the generator.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_map

from tests.opinfo.harness import VARIANTS, Tally, is_tensor, runnable, samples
from tests.opinfo.shortfalls import NONDETERMINISTIC
from torchfake import deferred_mode, is_fake, materialize_tensor

WAYS = ("external", "cloned", "drawn")
"""Real tensors outside of the mode; copies of them that are recorded; recorded from the first draw,
with all that torch's own generator of samples does inside the mode."""

UNINITIALIZED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Operators whose results nobody has written: there are no bytes to be equal."""

Sample = tuple[Any, tuple[Any, ...], dict[str, Any]]


class Outcome(NamedTuple):
    """What one run leaves: results, inputs, and the state of the generator; or an error."""

    results: list[Any]
    inputs: list[Any]
    state: torch.Tensor | None


def tally(op: Any, dtype: torch.dtype, variant: str, way: str, limit: int | None = None) -> Tally:
    """Every sample of `op` (the first `limit`), eager against recorded."""
    function = VARIANTS[variant].get(op)
    if function is None or not runnable(op, dtype, VARIANTS[variant]):
        return Tally(0, [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare = _compare_drawn if way == "drawn" else _compare_given
        outcomes = list(compare(op, dtype, function, way, limit))
    return Tally(len(outcomes), [f"{i}: {why}" for i, why in enumerate(outcomes) if why])


# Inputs that exist before.


def _compare_given(
    op: Any, dtype: torch.dtype, function: Any, way: str, limit: int | None
) -> Iterator[str | None]:
    for sample in itertools.islice(samples(op, dtype, False), limit):
        prepare = storage_copies if way == "cloned" else _unchanged
        try:
            expected = _run_one(function, storage_copies(sample), prepare, nullcontext())
        except Exception:
            continue  # eager cannot run it: there is nothing to equal
        try:
            got = _run_one(function, storage_copies(sample), prepare, deferred_mode())
            yield difference(op, got, expected)
        except Exception as error:
            yield _text_of(error)


def _unchanged(sample: Sample) -> Sample:
    return sample


def _run_one(
    function: Any, sample: Sample, prepare: Callable[[Sample], Sample], mode: Any
) -> Outcome:
    torch.manual_seed(0)
    with mode:
        value, args, kwargs = prepare(sample)
        results, _ = tree_flatten(function(value, *args, **kwargs))
    return Outcome(results, _tensors((value, args, kwargs)), torch.get_rng_state())


def storage_copies(sample: Any) -> Any:
    """The sample with new memory for every storage, and views of it where there were views."""
    bases: dict[int, torch.Tensor] = {}

    def copy(tensor: Any) -> Any:
        if not is_tensor(tensor) or tensor.layout != torch.strided:
            return tensor
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in bases:
            flat = tensor.new_empty(0).set_(storage)
            bases[key] = flat.clone()
        base = bases[key]
        if base.dtype != tensor.dtype:
            base = base.view(torch.uint8).view(tensor.dtype)
        view = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        view = view.conj() if tensor.is_conj() else view
        return torch._neg_view(view) if tensor.is_neg() else view

    return tree_map(copy, sample)


# Inputs that are recorded from the first draw.


def _compare_drawn(
    op: Any, dtype: torch.dtype, function: Any, way: str, limit: int | None
) -> Iterator[str | None]:
    """All samples in eager and in a mode, and the state of the generator after them."""
    expected, state = _run_all(op, dtype, function, nullcontext(), limit)
    got, got_state = _run_all(op, dtype, function, deferred_mode(), limit)
    if not got:
        return  # masked.cumsum has no samples for subclasses of torch.Tensor
    for one, other in itertools.zip_longest(got, expected, fillvalue=got[-1]):
        if isinstance(other, Exception):
            continue
        if isinstance(one, Outcome) and isinstance(other, Outcome):
            yield difference(op, one, other)
        else:
            yield _text_of(one) if isinstance(one, Exception) else "eager has no such sample"
    if not torch.equal(got_state, state):
        yield "another state of the generator"


def _run_all(
    op: Any, dtype: torch.dtype, function: Any, mode: Any, limit: int | None
) -> tuple[list[Outcome | Exception], torch.Tensor]:
    """What each sample gives, and the state of the generator in the end."""
    outcomes: list[Outcome | Exception] = []
    random.seed(0)
    with mode:
        drawn = itertools.islice(samples(op, dtype, False), limit)
        while True:
            try:
                sample = next(drawn, None)
            except Exception as error:  # eager has more of them then
                outcomes.append(error)
                break
            if sample is None:
                break
            value, args, kwargs = sample
            try:
                results, _ = tree_flatten(function(value, *args, **kwargs))
                outcomes.append(Outcome(results, _tensors(sample), None))
            except Exception as error:
                outcomes.append(error)
    return outcomes, torch.get_rng_state()


def _tensors(sample: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(sample)[0] if is_tensor(t)]


# What differs.


def difference(op: Any, got: Outcome, expected: Outcome) -> str | None:
    """None if two outcomes are equal, else what differs."""
    try:
        for what, some, others in (
            ("result", got.results, expected.results),
            ("input", got.inputs, expected.inputs),
        ):
            if len(some) != len(others):
                return f"{len(some)} {what}s, {len(others)} in eager"
            has_bits = what == "input" or op.name not in UNINITIALIZED | NONDETERMINISTIC
            for i, (one, other) in enumerate(zip(some, others, strict=True)):
                if found := _difference_of(one, other, has_bits):
                    return f"{what} {i}: {found}"
    except Exception as error:
        return f"made real: {_text_of(error)}"
    if got.state is not None and not torch.equal(got.state, expected.state):
        return "another state of the generator"
    return None


def _difference_of(one: Any, other: Any, has_bits: bool) -> str | None:
    one = materialize_tensor(one) if is_tensor(one) and is_fake(one) else one
    found, known = described(one), described(other)
    if found != known:
        return f"{found} is not {known}"
    if has_bits and is_tensor(one) and bits(one) != bits(other):
        return f"other bits: {_largest(one, other)}"
    return None


def described(value: Any) -> Any:
    """What must be equal besides bytes: the metadata of a tensor, the type and text of others."""
    if not is_tensor(value):
        return type(value).__name__, repr(value)
    if value.layout != torch.strided:
        return tuple(value.shape), value.dtype, value.layout
    strides = value.stride(), value.storage_offset(), value.is_conj(), value.is_neg()
    return tuple(value.shape), value.dtype, value.device, *strides


def bits(tensor: torch.Tensor) -> bytes:
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(dense)
    return bytes(flat.reshape(-1).view(torch.uint8).numpy().tobytes())


def _largest(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.dtype == torch.bool:
        return "booleans"
    return f"{(one - other).abs().max().item():.3g} apart of {other.abs().max().item():.3g}"


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
