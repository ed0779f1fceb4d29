"""Version counters of arguments, results and gradients, over torch's operator database.

Input: an OpInfo and a way to call it. Output: how many calls there were, and for each that differs
what the counters are. Invariant: a call is counted only if eager accepts it and fakes do, too.

A counter says whether a tensor has been written since autograd saved it; inference tensors have
none.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from tests.opinfo.harness import Tally, fake_copies, is_tensor, samples
from torchfake import fake_mode

WAYS = ("function", "method", "inplace", "out", "backward")


def tally(op: Any, dtype: torch.dtype, way: str, mode: Any, limit: int | None = None) -> Tally:
    """The calls of the samples of `op` in one way, in a mode."""
    is_differentiable = dtype.is_floating_point or dtype.is_complex
    if not _has(op, way) or (way == "backward" and not is_differentiable):
        return Tally(0, [])
    num, failures = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, sample in enumerate(
            itertools.islice(samples(op, dtype, way == "backward"), limit)
        ):
            pair = _counters_of_both(op, sample, way, mode)
            if pair is not None:
                num += 1
                failures += [f"{index}: {pair[1]} is not {pair[0]}"] if pair[0] != pair[1] else []
    return Tally(num, failures)


def _has(op: Any, way: str) -> bool:
    return {
        "function": True,
        "method": op.method_variant is not None,
        "inplace": op.inplace_variant is not None,
        "out": op.supports_out,
        "backward": op.supports_autograd,
    }[way]


def _counters_of_both(op: Any, sample: Any, way: str, mode: Any) -> tuple[Any, Any] | None:
    try:
        expected = _counters(op, _copied(sample), way)
        with mode():
            torch.manual_seed(0)
            given = fake_copies(sample, "cpu") if mode is fake_mode else _copied(sample)
            return expected, _counters(op, given, way)
    except Exception:
        return None


def _copied(sample: Any) -> Any:
    made: dict[int, Any] = {}

    def copy(value: Any) -> Any:
        if not is_tensor(value):
            return value
        if id(value) not in made:
            made[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
        return made[id(value)]

    return tree_map(copy, sample)


def _counters(op: Any, sample: Any, way: str) -> list[Any]:
    value, args, kwargs = sample
    tensors = [t for t in tree_flatten(sample)[0] if is_tensor(t)]
    with torch.set_grad_enabled(way in ("function", "method", "backward")):
        results = list(_results(op, value, args, kwargs, way))
    found = [("argument", i, _counter(t)) for i, t in enumerate(tensors)]
    found += [("result", i, _counter(t)) for i, t in enumerate(results)]
    if way != "backward":
        return found
    outputs = [t for t in results if t.requires_grad]
    wanted = [t for t in tensors if t.requires_grad]
    seeds = [torch.ones_like(t) for t in outputs]
    grads = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True)
    found += [("gradient", i, _counter(g)) for i, g in enumerate(grads) if g is not None]
    return found


def _results(op: Any, value: Any, args: Any, kwargs: Any, way: str) -> Iterator[Any]:
    call: Callable[..., Any] = op.op
    if way in ("method", "inplace"):
        call = op.method_variant if way == "method" else op.inplace_variant
    results = call(value, *args, **kwargs) if way != "out" else op.op(value, *args, **kwargs)
    if way == "out":
        outs = tree_map(lambda t: torch.empty_like(t) if is_tensor(t) else t, results)
        kwargs = {k: v for k, v in kwargs.items() if k != "device"}
        results = call(value, *args, **kwargs, out=outs)
    return (t for t in tree_flatten(results)[0] if is_tensor(t))


def _counter(tensor: Any) -> int | str:
    return "none" if tensor.is_inference() else tensor._version
