"""Which dtypes operators refuse on CUDA, in torch and on fake CUDA.

    python -m tests._eager_checks.worker_cuda_dtypes [SAMPLES]

The first samples of each operator of OpInfo, in ten dtypes, and with the first tensor in another
dtype than the others, forward and backward. ``tests/cuda_stand_in`` stands in for CUDA; torch has
to be built for it. A call that torch accepts and fake CUDA refuses is an error. What torch refuses
and fake CUDA accepts is counted: docs/limits.md has the share. With ``-v`` it is shown.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.cuda_stand_in.build import run_each_with_cuda
from torchfake import fake_mode

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
MIXED = (
    (F32, F16), (F16, F32), (F32, BF16), (BF16, F32), (F16, BF16), (F32, torch.float64),
    (torch.float64, F32), (F32, torch.complex64), (F32, torch.int64), (torch.int64, F32),
    (F32, torch.bool), (torch.bool, F32),
)  # fmt: skip
"""The dtypes of the first tensor, and of the others."""

PAIRS = (*((dtype, dtype) for dtype in DTYPES), *MIXED)
REFUSED = re.compile("not implemented for|dtype|scalar type|can't be cast|data type|type .*Tensor")
ACCEPTED = "accepted"
DIFFERENT = ("jiterator", "fft.", "triu_indices", "tril_indices", "__getitem__", "masked_select",
             "sparse.", "nonzero", "argwhere", "unique", "count_nonzero")  # fmt: skip
"""Operators whose outcome has another reason: no compiler of CUDA, or values, which kernels of the
stand-in do not compute."""


def calls(index: int, num_samples: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls of one operator on CUDA, by the operator's name, the sample and the dtype."""
    info = op_db[index]
    if info.name.startswith(DIFFERENT):
        return
    for dtype in (torch.float32, torch.int64):
        try:
            samples = list(itertools.islice(info.sample_inputs("cpu", dtype), num_samples))
            break
        except Exception:
            samples = []
    for (i, sample), pair in itertools.product(enumerate(samples), PAIRS):
        if pair[0] is pair[1] or _num_floating(sample) > 1:
            yield (
                f"{info.name}.{info.variant_test_name} {i} {pair[0]} {pair[1]}",
                lambda sample=sample, pair=pair: _run(info, sample, pair),
            )


def _num_floating(sample: Any) -> int:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return sum(isinstance(leaf, torch.Tensor) and leaf.dtype == F32 for leaf in leaves)


def _run(info: Any, sample: Any, pair: tuple[torch.dtype, torch.dtype]) -> None:
    dtypes = itertools.chain(pair[:1], itertools.repeat(pair[1]))

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        return tensor.to(next(dtypes) if tensor.dtype == F32 else tensor.dtype).to("cuda")

    given = sample.input, sample.args, sample.kwargs
    first, args, kwargs = tree_map_only(torch.Tensor, moved, given)
    kwargs = {name: "cuda" if name == "device" else value for name, value in kwargs.items()}
    leaves = [t for t in tree_leaves((first, args)) if isinstance(t, torch.Tensor)]
    differentiable = [t for t in leaves if t.is_floating_point() or t.is_complex()]
    if info.supports_autograd:
        for leaf in differentiable:
            leaf.requires_grad_()
    result = info.op(first, *args, **kwargs)
    for tensor in tree_leaves(result):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            tensor.sum().abs().backward(retain_graph=True)


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return ACCEPTED


def work(first: int, num_samples: int) -> None:
    warnings.simplefilter("ignore")
    for index in range(first, len(op_db)):
        print(json.dumps([index, None, None]), flush=True)
        for name, call in calls(index, num_samples):
            print(json.dumps([index, name, outcome(call)]), flush=True)


def of_cuda(num_samples: int) -> dict[str, str]:
    """What torch does on CUDA; what follows on a call that ends the process is left out."""
    return run_each_with_cuda(
        __spec__.name, len(op_db), lambda first: ["work", str(first), str(num_samples)], seconds=900
    )


def main(num_samples: int) -> None:
    warnings.simplefilter("ignore")
    real = of_cuda(num_samples)
    refused = missed = wrong = 0
    with fake_mode(fake_cuda=True):
        for index in range(len(op_db)):
            for name, call in calls(index, num_samples):
                if name not in real:
                    continue
                own, expected = outcome(call), real[name]
                is_refused = REFUSED.search(expected) is not None
                refused += is_refused
                missed += is_refused and own == ACCEPTED
                if is_refused and own == ACCEPTED and "-v" in sys.argv:
                    print(name, "| fake CUDA accepts it | CUDA:", expected)
                if expected == ACCEPTED and REFUSED.search(own):
                    wrong += 1
                    print(name, "| CUDA accepts it | fake:", own)
    print(f"{len(real)} calls, {refused} refused by CUDA for a dtype, {missed} of these accepted")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
