"""What eager refuses, on fakes: torch's own samples of errors, and ``out=`` of every dtype.

Input: an OpInfo and a mode. Output: how many calls there were, and for each that differs what eager
and what the mode has done: nothing, or an exception of another type. Texts are not compared.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.opinfo.harness import VARIANTS, Tally, is_tensor, runnable, samples
from torchfake import errors

OUT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8,
              torch.bool, torch.complex64)  # fmt: skip


def _outcome(mode: Any, call: Callable[[], Any]) -> str | None:
    """The name of the error that a call ends in; None if it ends in none, or needs values."""
    try:
        with mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except (errors.UnknownValueError, errors.UnsupportedOpError):
        return None
    except Exception as error:
        return type(error).__name__
    return "none"


def _difference(mode: Any, call: Callable[[], Any]) -> str | None:
    expected, found = _outcome(nullcontext(), call), _outcome(mode(), call)
    return None if found in (None, expected) else f"{found} is not {expected}"


def tally_of_errors(op: Any, mode: Any) -> Tally:
    """The samples of arguments that the operator refuses; made in the mode."""
    failures, num = [], 0
    for index, each in enumerate(op.error_inputs("cpu") if op.error_inputs_func else ()):
        sample = each.sample_input
        if "out" in sample.kwargs:
            continue  # tests/opinfo/overlaps.py
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))

        def call(given: Any = given) -> Any:
            value, args, kwargs = tree_map(_made, given)
            return op.op(value, *args, **kwargs)

        num += 1
        failures += _line(index, _difference(mode, call))
    return Tally(num, failures)


def tally_of_outputs(op: Any, dtype: torch.dtype, mode: Any, limit: int | None = 1) -> Tally:
    """Each of the results written to a tensor of each dtype."""
    failures, num = [], 0
    if not op.supports_out or not runnable(op, dtype, VARIANTS["function"]):
        return Tally(0, [])
    for sample in itertools.islice(samples(op, dtype, False), limit):
        for shown, call in _calls_with_out(op, sample):
            num += 1
            failures += _line(shown, _difference(mode, call))
    return Tally(num, failures)


def _calls_with_out(op: Any, sample: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    results = op.op(sample[0], *sample[1], **sample[2])
    if isinstance(results, (bool, int, float)):
        return  # torch's database says wrongly that it can be written
    every = [results] if is_tensor(results) else list(results)
    for position, dtype in itertools.product(range(len(every)), OUT_DTYPES):

        def call(position: int = position, dtype: torch.dtype = dtype) -> Any:
            value, args, kwargs = tree_map(_made, sample)
            outs = [
                torch.empty(t.shape, dtype=dtype if i == position else t.dtype)
                for i, t in enumerate(every)
            ]
            return op.op(value, *args, **kwargs, out=outs[0] if is_tensor(results) else tuple(outs))

        yield f"out {position} of {dtype}", call


def _made(value: Any) -> Any:
    return value.clone() if is_tensor(value) and 0 not in value.stride() else value


def _line(shown: Any, difference: str | None) -> list[str]:
    return [] if difference is None else [f"{shown}: {difference}"]
