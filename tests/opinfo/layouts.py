"""Torch's operator database with arguments that lie otherwise in memory: strides against eager's.

Input: an OpInfo, a layout. Output: how many samples there were, and for each that differs what
differed. Strides of dims of length one are compared too: they decide which memory format a
following convolution takes a tensor to have.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from tests.opinfo.harness import VARIANTS, Prepared, Tally, differences, fakes_of, run, samples
from tests.strides.arrangements import (
    channels_last,
    gapped,
    odd_ones,
    reversed_dims,
    rotated,
    transposed,
)

FUNCTION = VARIANTS["function"]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    f.__name__: f for f in (channels_last, reversed_dims, rotated, transposed, gapped, odd_ones)
}


def laid_out(sample: Any, layout: Callable[[Tensor], Tensor]) -> Any:
    """The sample with each strided tensor laid out so, one for each; None if nothing changes."""
    made: dict[int, Tensor] = {}

    def changed(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            return value
        if id(value) not in made:
            made[id(value)] = layout(value.detach())
        return made[id(value)]

    result = tree_map(changed, sample)
    before, after = (
        [v for v in tree_flatten(s)[0] if isinstance(v, Tensor)] for s in (sample, result)
    )
    strided = [(a, b) for a, b in zip(before, after, strict=True) if a.layout == torch.strided]
    return None if all(a.stride() == b.stride() for a, b in strided) else result


def tally(op: Any, dtype: torch.dtype, layout: str, limit: int | None) -> Tally:
    """The first samples of `op` that eager can run in this layout, all without `limit`."""
    if dtype not in op.supported_dtypes("cpu"):
        return Tally(0, [])
    prepared: list[Prepared] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, sample in enumerate(samples(op, dtype, False)):
            if limit is not None and len(prepared) >= limit:
                break
            try:
                sample = laid_out(sample, LAYOUTS[layout])
                if sample is None:
                    continue
                fakes = [fakes_of(sample, "cpu")]
                prepared.append(Prepared(index, fakes, run(op.op, sample, False)))
            except Exception:
                continue  # eager cannot run it: there is nothing to equal
        return Tally(len(prepared), differences(op.op, prepared, 0, FUNCTION))
