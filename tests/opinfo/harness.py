"""Runs torch's own operator database on fakes, and compares with eager.

Enters: an OpInfo, a dtype and a variant. Leaves: how many samples there were, and for each that
differs what differed. A sample counts when eager can run it; its fake inputs are made by
``fake_like``, so no value is known and no real kernel can stand in.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import torchfake

OPS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}


class Tally(NamedTuple):
    """What became of one operator's samples."""

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
    """The fake twins of a sample, or the error that making them raised."""
    try:
        return twins(sample, device)
    except torchfake.errors.TorchFakeError as error:
        return error


def twins(sample: Any, device: str) -> Any:
    """A sample's arguments with a fake in place of every tensor, one per tensor; a device that
    is named in them is `device`."""
    made: dict[int, Any] = {}

    def twin(value: Any) -> Any:
        if isinstance(value, torch.device) or (value == "cpu" and isinstance(value, str)):
            return device
        if not is_tensor(value):
            return value
        if id(value) not in made:
            target = device if value.device.type == "cpu" else str(value.device)
            made[id(value)] = torchfake.fake_like(value, device=target)
        return made[id(value)]

    return tree_map(twin, sample)


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


def tally(op: Any, dtype: torch.dtype, variant: Variant) -> Tally:
    """Every sample of `op`, eager against fake."""
    function = variant.get(op)
    if function is None or not runnable(op, dtype, variant):
        return Tally(0, [])
    num_samples, failures = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, sample in enumerate(samples(op, dtype, variant.backward)):
            try:
                sample = eager_copy(sample, variant)
                fakes = fakes_of(sample, variant.device)
                wanted = run(function, sample, variant.backward)
            except Exception:
                continue  # eager cannot run it: there is nothing to equal
            num_samples += 1
            difference = compare(function, fakes, wanted, variant)
            if difference is not None:
                failures.append(f"{index}: {difference}")
    return Tally(num_samples, failures)


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


def compare(function: Any, fakes: Any, wanted: list[Any], variant: Variant) -> str | None:
    """None if the fake result equals eager's, else what differs."""
    if isinstance(fakes, Exception):
        return f"{type(fakes).__name__}: {fakes}"
    try:
        with torchfake.fake_mode(fake_cuda=variant.device == "cuda"):
            got = run(function, fakes, variant.backward)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    if len(got) != len(wanted):
        return f"{len(got)} results, {len(wanted)} in eager"
    device = variant.device if mentions(fakes, variant.device) else "cpu"
    for fake, real in zip(got, wanted, strict=True):
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
