"""Which operators take a CPU tensor of no dims among tensors on CUDA, in torch and on fake CUDA.

    python -m tests._operators.worker_number_devices

The first sample of each operator of OpInfo, with one tensor after another replaced by a number on
the CPU. ``tests/cuda_stand_in`` stands in for CUDA; torch has to be built for it.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.cuda_stand_in.build import run_each_with_cuda
from torchfake import fake_mode

DIFFERENT_DEVICES = re.compile("on the same device|cu[a-z]+ DeviceType|is_cuda.. INTERNAL ASSERT")
KNOWN = {
    "inner. 0",
    "inner. 1",
    "nn.functional.linear_cross_entropy. 2",
    "_unsafe_masked_index_put_accumulate. 4",
}
"""Composites whose C++ compares devices, or whose parts do in another order: taken on fake CUDA."""


def placements(index: int) -> Iterator[tuple[str, Any]]:
    """Calls of one operator with a number on the CPU, by the place of that number."""
    info = op_db[index]
    try:
        sample = next(iter(info.sample_inputs("cpu", torch.float32)), None)
    except Exception:
        try:
            sample = next(iter(info.sample_inputs("cpu", torch.int64)), None)
        except Exception:
            return
    if sample is None:
        return
    flat, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [i for i, each in enumerate(flat) if isinstance(each, torch.Tensor)]
    for number in places if len(places) > 1 else ():

        def call(number: int = number) -> Any:
            placed = [
                (torch.ones((), dtype=each.dtype) if i == number else each.detach().to("cuda"))
                if i in places
                else each
                for i, each in enumerate(flat)
            ]
            args, kwargs = tree_unflatten(placed, spec)
            return info.op(*args, **kwargs)

        yield f"{info.name}.{info.variant_test_name} {places.index(number)}", call


def outcome(call: Any) -> str:
    try:
        call()
    except Exception as error:
        text = str(error)
        return (
            "devices" if DIFFERENT_DEVICES.search(text) else f"{type(error).__name__}: {text[:150]}"
        )
    return "accepted"


def work(first: int) -> None:
    warnings.simplefilter("ignore")
    for index in range(first, len(op_db)):
        print(json.dumps([index, None, None]), flush=True)
        for name, call in placements(index):
            print(json.dumps([index, name, outcome(call)]), flush=True)


def of_cuda() -> dict[str, str]:
    """What torch does on CUDA; an operator that ends the process is left out."""
    return run_each_with_cuda(__spec__.name, len(op_db), lambda first: [str(first)], seconds=300)


def main() -> None:
    real = of_cuda()
    different = 0
    with fake_mode(fake_cuda=True):
        for index in range(len(op_db)):
            for name, call in placements(index):
                if name in real:
                    own = outcome(call)
                    is_other = {own, real[name]} == {"accepted", "devices"}
                    if is_other and name not in KNOWN:
                        different += 1
                        print(name, "| CUDA:", real[name], "| fake:", own)
    print(f"{len(real)} placements, {different} differ")
    sys.exit(bool(different))


if __name__ == "__main__":
    work(int(sys.argv[1])) if len(sys.argv) > 1 else main()
