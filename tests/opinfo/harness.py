"""Runs torch's own operator database on fakes, and compares with eager.

Input: an OpInfo, a dtype and a variant. Output: how many samples there were, and for each that
differs what differed. A sample counts when eager can run it; its fake inputs are made by
``fake_like``, so no value is known and no real kernel can stand in.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import torchfake

OPS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}
OPS["__getitem__"].op = operator.getitem
"""The database has the method of ``torch.Tensor``, which no class or mode can intercept."""


class Tally(NamedTuple):
    """The outcome of one operator's samples."""

    num_samples: int
    failures: list[str]  # one line per sample that differs


class Variant(NamedTuple):
    """One way to call an operator with a sample."""

    name: str
    get: Callable[[Any], Any]  # OpInfo -> callable, or None where it has no such variant
    device: str = "cpu"
    backward: bool = False
    warm: bool = False


VARIANTS = {
    v.name: v
    for v in (
        Variant("function", lambda op: op.op),
        Variant("method", lambda op: op.method_variant),
        Variant("inplace", lambda op: op.inplace_variant),
        Variant("cuda", lambda op: op.op, device="cuda"),
        Variant("backward", lambda op: op.op, backward=True),
    )
}


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def describe(value: Any) -> Any:
    """What must be equal: shape, dtype, layout, strides and device of a tensor; else the type."""
    if not is_tensor(value):
        return type(value).__name__
    strides = value.stride() if value.layout == torch.strided else None
    place = (value.device.type, value.storage_offset() if strides is not None else None)
    return (tuple(value.shape), value.dtype, value.layout, strides, *place)


def fakes_of(sample: Any, device: str) -> Any:
    """The fake copies of a sample, or the error that making them raised."""
    try:
        return fake_copies(sample, device)
    except torchfake.errors.TorchFakeError as error:
        return error


def fake_copies(sample: Any, device: str) -> Any:
    """A sample's arguments with a fake in place of every tensor, one per tensor; a device that
    is named in them is `device`."""
    made: dict[int, Any] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, torch.device) or (value == "cpu" and isinstance(value, str)):
            return device
        if not is_tensor(value):
            return value
        if id(value) not in made:
            target = device if value.device.type == "cpu" else str(value.device)
            made[id(value)] = torchfake.fake_like(value, device=target)
        return made[id(value)]

    return tree_map(copy, sample)


def samples(op: Any, dtype: torch.dtype, backward: bool) -> Iterator[tuple[Any, ...]]:
    """The operator's samples. (op.sample_inputs would walk the stack for each: 60 ms an op.)"""
    torch.manual_seed(0)
    for sample in op.sample_inputs_func(op, "cpu", dtype, backward):
        yield (sample.input, tuple(sample.args), dict(sample.kwargs))


def run(function: Callable[..., Any], sample: Any, backward: bool) -> list[Any]:
    """The flattened result of one call; with `backward`, the inputs' gradients after it."""
    value, args, kwargs = sample
    flat, _ = tree_flatten(function(value, *args, **kwargs))
    if not backward:
        return flat
    outputs = [t for t in flat if is_tensor(t) and t.requires_grad]
    if not outputs:
        return flat
    inputs = [t for t in tree_flatten(sample)[0] if is_tensor(t) and t.requires_grad]
    grads = torch.autograd.grad(
        outputs, inputs, [torch.ones_like(t) for t in outputs], allow_unused=True
    )
    return [*flat, *grads]


class Prepared(NamedTuple):
    """A sample that eager can run: its fake copies, one for each variant, and eager's result."""

    index: int
    fakes: list[Any]
    expected: list[Any]


def tallies(op: Any, dtype: torch.dtype, variants: list[Variant]) -> list[Tally]:
    """Every sample of `op`, eager against fake, for variants that are one call on several devices.

    Eager runs each sample once for all of them; each variant enters its mode once for all samples.
    """
    function = variants[0].get(op)
    if function is None or not runnable(op, dtype, variants[0]):
        return [Tally(0, []) for _ in variants]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(prepared(op, dtype, variants))
        return [
            Tally(len(samples), differences(function, samples, i, variant))
            for i, variant in enumerate(variants)
        ]


def prepared(op: Any, dtype: torch.dtype, variants: list[Variant]) -> Iterator[Prepared]:
    variant = variants[0]
    for index, sample in enumerate(samples(op, dtype, variant.backward)):
        try:
            sample = eager_copy(sample, variant)
            fakes = [fakes_of(sample, each.device) for each in variants]
            expected = run(variant.get(op), sample, variant.backward)
        except Exception:
            continue  # eager cannot run it: there is nothing to equal
        yield Prepared(index, fakes, expected)


def differences(
    function: Any, samples: list[Prepared], position: int, variant: Variant
) -> list[str]:
    """A line for each sample whose fake result differs from eager's."""
    found = []
    with torchfake.fake_mode(fake_cuda=variant.device == "cuda"):
        for sample in samples:
            difference = compare(function, sample.fakes[position], sample.expected, variant)
            if difference is not None:
                found.append(f"{sample.index}: {difference}")
    return found


def eager_copy(sample: Any, variant: Variant) -> Any:
    if variant.name != "inplace":
        return sample
    value, args, kwargs = sample
    copy = value.clone() if is_tensor(value) else [v.clone() for v in value]
    return copy, args, kwargs


def runnable(op: Any, dtype: torch.dtype, variant: Variant) -> bool:
    if variant.backward and not op.supports_autograd:
        return False
    return dtype in op.supported_dtypes("cpu")


def compare(function: Any, fakes: Any, expected: list[Any], variant: Variant) -> str | None:
    """None if the fake result equals eager's, else what differs."""
    if isinstance(fakes, Exception):
        return f"{type(fakes).__name__}: {fakes}"
    try:
        got = run(function, fakes, variant.backward)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    if len(got) != len(expected):
        return f"{len(got)} results, {len(expected)} in eager"
    device = variant.device if mentions(fakes, variant.device) else "cpu"
    for fake, real in zip(got, expected, strict=True):
        if difference := differ(fake, real, device):
            return difference
    return None


def mentions(sample: Any, device: str) -> bool:
    """Whether a sample's arguments put its result on `device`."""
    flat, _ = tree_flatten(sample)
    return any((v.device.type if is_tensor(v) else v) == device for v in flat)


def differ(fake: Any, real: Any, device: str) -> str | None:
    expected, found = describe(real), describe(fake)
    if is_tensor(real):
        expected = (*expected[:-2], device, expected[-1])
    if expected == found:
        return None
    return f"{found} is not {expected}"


def grouped(failures: list[str]) -> str:
    """The failures of one operator in one line: how many, and the first."""
    return f"{len(failures)} samples, first {failures[0]}"
