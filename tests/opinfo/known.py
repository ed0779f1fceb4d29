"""Runs torch's own operator database on fakes of known values, and compares the values with eager.

Input: an OpInfo, a dtype, and whether gradients are computed too. Output: how many values were
known, and for each that has other bits than eager's what differed. A value need not be known.
"""

from __future__ import annotations

import itertools
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.opinfo.harness import VARIANTS, Tally, is_tensor, run, runnable, samples
from tests.opinfo.recorded import UNINITIALIZED, bits
from torchfake import errors, fake_mode, is_fake


def tally(op: Any, dtype: torch.dtype, backward: bool, limit: int | None = None) -> Tally:
    """Every sample of `op` (the first `limit`), eager against fake, in bits."""
    variant = VARIANTS["backward" if backward else "function"]
    if not runnable(op, dtype, variant) or op.name in UNINITIALIZED:
        return Tally(0, [])
    num_known, failures = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, sample in enumerate(itertools.islice(samples(op, dtype, backward), limit)):
            try:
                expected = _results(op, sample, nullcontext(), backward)
            except Exception:
                continue  # eager cannot run it: there is nothing to equal
            try:
                found = _results(op, sample, fake_mode(), backward)
            except Exception as error:
                text = (str(error).splitlines() or [""])[0][:160]
                failures.append(f"{index}: {type(error).__name__}: {text}")
                continue
            for i, (fake, real) in enumerate(zip(found, expected, strict=True)):
                same = _has_same_bits(fake, real)
                num_known += same is not None
                failures += [f"{index}: result {i} has other bits"] if same is False else []
    return Tally(num_known, failures)


def _results(op: Any, sample: Any, mode: Any, backward: bool) -> list[Any]:
    torch.manual_seed(0)
    with mode:
        return run(op.op, tree_map(_of_numbers, sample), backward)


def _of_numbers(value: Any) -> Any:
    """A tensor made of numbers in this mode, whose value is known."""
    if not is_tensor(value):
        return value
    made = torch.tensor(value.tolist(), dtype=value.dtype).reshape(value.shape)
    return made.requires_grad_(value.requires_grad)


def _has_same_bits(fake: Any, real: Any) -> bool | None:
    """Whether a value is eager's; None if it is unknown, or no tensor."""
    if not is_tensor(real) or not is_fake(fake) or not real.numel():
        return None
    fake = fake.detach()
    fake = fake.clone() if fake._is_zerotensor() else fake  # which eager does not read either
    try:
        value = torch.tensor(fake.tolist(), dtype=fake.dtype).reshape(fake.shape)
    except errors.UnknownValueError:
        return None
    return bits(value) == bits(real)
