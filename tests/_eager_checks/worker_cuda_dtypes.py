"""Which dtypes operators refuse on CUDA, in torch and on fake CUDA.

    python -m tests._eager_checks.worker_cuda_dtypes [SAMPLES]

The first samples of each operator of OpInfo, in ten dtypes, forward and backward.
``tests/cuda_stand_in`` stands in for CUDA; torch has to be built for it. A call that torch accepts
and fake CUDA refuses is an error. What torch refuses and fake CUDA accepts is counted:
docs/limits.md has the share.
"""

from __future__ import annotations

import itertools
import json
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
REFUSED = "not implemented for"
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
    for i, (sample, dtype) in enumerate(itertools.product(samples, DTYPES)):
        yield (
            f"{info.name}.{info.variant_test_name} {i // len(DTYPES)} {dtype}",
            lambda sample=sample, dtype=dtype: _run(info, sample, dtype),
        )


def _run(info: Any, sample: Any, dtype: torch.dtype) -> None:
    def moved(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        return tensor.to(dtype if tensor.dtype == torch.float32 else tensor.dtype).to("cuda")

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
                refused += REFUSED in expected
                missed += REFUSED in expected and own == ACCEPTED
                if expected == ACCEPTED and REFUSED in own:
                    wrong += 1
                    print(name, "| CUDA accepts it | fake:", own)
    print(f"{len(real)} calls, {refused} refused by CUDA for a dtype, {missed} of these accepted")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
