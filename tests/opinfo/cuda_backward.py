"""Runs programs forward and backward on torch's own CUDA backend and on fakes, and tells where the
operators, the results, the gradients and the saved tensors differ.

Input: samples of torch's operator database and list of modules, calls of attention. Output: what
each side saw, as JSON. ``tests/cuda_stand_in`` stands in for CUDA, so that no GPU is needed:
kernels compute nothing, and so a result whose shape depends on values is not comparable.

    python -m tests.opinfo.cuda_backward [STEP]     every STEP-th operator and module, 2 dtypes
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.cuda_stand_in.build import run_with_cuda
from tests.opinfo import cuda_operators as forward

ACCELERATORS = {8: "a100-80gb", 9: "h100-80gb"}
NUM_ATTENTION_CALLS = 400
FLOATS = [torch.float32, torch.bfloat16]

VALUES = "a shape, or a branch, is a matter of values: refused here, and a guess without kernels"
SAMPLES = "the database draws its samples from a set, whose order is another in each process"
JITERATOR = "torch.cuda.jiterator asks torch for a GPU when it is called"
SPARSE = "fakes are strided"
MIXED = "mm with an out dtype takes operands of two dtypes on CUDA, and is refused here"

_MASKED = (
    "amax", "amin", "argmax", "argmin", "log_softmax", "logaddexp", "mean", "norm", "normalize",
    "prod", "softmax", "softmin", "std", "sum", "var",
)  # fmt: skip

UNTOLD: dict[str, str] = {
    **{name: reason for name, reason in forward.UNTOLD.items() if reason != forward.ATTENTION},
    **dict.fromkeys(("allclose", "nonzero", "unique", "unique_consecutive"), VALUES),
    **dict.fromkeys(
        ("empty_like", "new_empty_strided", "new_full", "new_zeros", "randint"), SAMPLES
    ),
    **dict.fromkeys(("jiterator_2inputs_2outputs", "jiterator_binary"), JITERATOR),
    **dict.fromkeys(
        tuple(f"masked.{op}" for op in _MASKED),
        forward.NUMBERS,
    ),
    "nn.CircularPad1d": "views of the border are made once more",
    "nn.functional.linear_cross_entropy.chunked_none": MIXED,
    "to_sparse": SPARSE,
}
"""What differs, and why."""


def cases(step: int) -> Iterator[forward.Case]:
    yield from forward.operator_cases(FLOATS, step, 2)
    yield from forward.module_cases(FLOATS, step, 2)
    yield from itertools.islice(attention_cases(), NUM_ATTENTION_CALLS // step)


def attention_cases() -> Iterator[forward.Case]:
    """Calls of attention: dtypes, dims, lengths, masks, dropout, grouped heads."""
    dims = [(64, 64), (4, 4), (63, 63), (128, 128), (192, 128), (256, 256), (264, 264), (64, 32)]
    lengths = [(128, 128), (128, 64), (16, 128), (16, 17)]
    masks = [None, "bool", "grad", "rows", "one", "heads", "row"]
    product = itertools.product(
        [torch.float32, torch.float16, torch.bfloat16], dims, lengths, masks, (0.0, 0.1, 0.125),
        (False, True), (False, True),
    )  # fmt: skip
    calls = list(product)
    random.Random(0).shuffle(calls)
    for dtype, (dim, of_values), (length, of_keys), mask, dropout_p, grad, grouped in calls:
        num_keys = 2 if grouped else 4
        shapes = (2, 4, length, dim), (2, num_keys, of_keys, dim), (2, num_keys, of_keys, of_values)
        tensors = [torch.empty(s, dtype=dtype, requires_grad=grad) for s in shapes]
        options = {"dropout_p": dropout_p, "enable_gqa": grouped}
        args = (*tensors, _mask(mask, length, of_keys, dtype)), options
        yield forward.Case("attention", dtype, _attend, args)


def _attend(_: Any, args: Any, kwargs: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def _mask(kind: str | None, length: int, of_keys: int, dtype: torch.dtype) -> torch.Tensor | None:
    shapes = {
        "bool": (2, 1, length, of_keys), "grad": (1, 4, length, of_keys), "rows": (length, of_keys),
        "one": (2, 1, 1, of_keys), "heads": (4, length, of_keys), "row": (of_keys,),
    }  # fmt: skip
    if kind is None:
        return None
    dtype = torch.bool if kind in ("bool", "one") else dtype
    return torch.empty(shapes[kind], dtype=dtype, requires_grad=kind == "grad")


def run(case: forward.Case) -> list[Any]:
    """What a case does, forward and backward, in the mode that is on."""
    moved = tree_map(forward.on_cuda, case.args)
    with forward.Operators() as seen:
        result = case.program(seen, *moved)
    tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    found = [seen.names, list(map(forward.described, tensors)), forward.nodes_of(tensors)]
    roots = [t for t in tensors if t.requires_grad]
    leaves = [t for t in tree_leaves(moved) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not roots or not leaves:
        return found
    ones = [torch.empty_like(t) for t in roots]
    with forward.Operators() as seen:
        gradients = torch.autograd.grad(roots, leaves, ones, allow_unused=True)
    described = [None if g is None else forward.described(g) for g in gradients]
    return [*found, seen.names, described]


PARTS = "operators", "results", "saved tensors", "operators of backward", "gradients"


def run_all(step: int, mode: Callable[[], Any]) -> list[Any]:
    """What each case did, or the error that it raised."""
    results: list[Any] = []
    for case in cases(step):
        try:
            with warnings.catch_warnings(), mode():
                warnings.simplefilter("ignore")
                results.append(run(case))
        except Exception as error:  # operators raise many types
            results.append(f"{type(error).__name__}: {error}"[:150])
    plain: list[Any] = json.loads(json.dumps(results, default=str))
    return plain


def compare(step: int, major: int) -> tuple[Counter[str], list[str]]:
    """How many cases are the same, untold and different; a line for each that is different."""
    from torchfake import fake_mode

    real = run_with_cuda("tests.opinfo.cuda_backward", step, gpu_major=major)
    ours = run_all(step, lambda: fake_mode(fake_cuda=ACCELERATORS[major]))
    counts: Counter[str] = Counter()
    lines = []
    for case, one, other in zip(cases(step), real, ours, strict=True):
        outcome, text = _difference(one, other)
        if outcome == "different" and case.name in UNTOLD:
            outcome = "listed"
        counts[outcome] += 1
        if outcome == "different":
            lines.append(f"{case.name} {case.dtype}: {text[:400]}")
    return counts, lines


def _difference(real: Any, ours: Any) -> tuple[str, str]:
    if isinstance(real, str):
        same = isinstance(ours, str) and ours.partition(":")[0] == real.partition(":")[0]
        return ("same error", "") if same else ("untold", real)
    if isinstance(ours, str):
        return "different", ours
    for part, one, other in zip(PARTS, real, ours, strict=False):
        if one != other:
            while isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
                one, other = next((a, b) for a, b in zip(one, other, strict=True) if a != b)
            return "different", f"{part}: {one} on CUDA, {other} here"
    return "same", ""


def _main() -> None:
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    is_different = False
    for major in ACCELERATORS:
        counts, lines = compare(step, major)
        print("\n".join(lines))
        print(ACCELERATORS[major], dict(counts))
        is_different |= bool(lines)
    sys.exit(is_different)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        json.dump(run_all(json.load(sys.stdin), contextlib.nullcontext), sys.stdout)
    else:
        _main()
