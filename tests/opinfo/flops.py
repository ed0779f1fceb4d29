"""Counts the FLOPs of torch's operator database and list of modules on fake CUDA.

Input: samples, forward and backward. Output: for each case what is wrong with its count, and the
operators whose FLOPs are not known. Four things are compared:

- The count of a product with the number of its multiplications. These are found by running it on
  the CPU with tensors of ones: each element of the result is then the number of products that were
  added up for it. Padding, of which kernels skip the multiplications, may make a count larger.
- The count of its backward pass with that of the forward pass: as much for each factor at most.
- All counts with torch's FlopCounterMode, where no formula of ours takes part.
- Operators that count as bound by memory with torch's decompositions: none multiplies matrices.

    python -m tests.opinfo.flops [STEP]     every STEP-th operator and module
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from tests.opinfo import cuda_operators as forward
from torchfake import fake_mode
from torchfake.inspect.arithmetic.formulas import flops_of
from torchfake.inspect.arithmetic.kinds import kind_of
from torchfake.inspect.arithmetic.moved_bytes import launches_nothing, memory_of
from torchfake.observe import FakeTensor, Observer, observing

GPU = "h100-80gb"

_CONVOLUTIONS = tuple(
    f"nn.functional.conv{kind}{dim}d" for kind in ("", "_transpose") for dim in (1, 2, 3)
)
PRODUCTS = frozenset(
    ("addbmm", "addmm", "addmm.decomposed", "addmv", "baddbmm", "bmm", "dot", "einsum", "inner",
     "linalg.multi_dot", "matmul", "__rmatmul__", "mm", "mv", "nn.functional.bilinear",
     "nn.functional.linear", "tensordot", "vdot", *_CONVOLUTIONS)
)  # fmt: skip
"""Operators of the database that add up products of elements of their arguments."""

_CHAINS = frozenset({"einsum", "linalg.multi_dot", "nn.functional.bilinear", "tensordot"})
"""Products of several factors, whose intermediate results have sizes of their own, and those that
add up a factor over dims that the other does not have before they multiply."""

UNCOUNTED = frozenset(
    """
    aten._cdist_backward aten._cdist_forward aten._linalg_det aten._linalg_eigh
    aten._linalg_slogdet aten._linalg_solve_ex aten._linalg_svd aten._pdist_backward
    aten._pdist_forward aten.cholesky aten.cholesky_inverse aten.cholesky_solve aten.geqrf
    aten.linalg_cholesky_ex aten.linalg_eig aten.linalg_householder_product aten.linalg_inv_ex
    aten.linalg_ldl_factor_ex aten.linalg_ldl_solve aten.linalg_lstsq aten.linalg_lu
    aten.linalg_lu_factor_ex aten.linalg_lu_solve aten.linalg_matrix_exp aten.linalg_pinv
    aten.linalg_qr aten.linalg_solve_triangular aten.ormqr aten.triangular_solve
    """.split()  # noqa: SIM905
)
"""Operators of the database whose FLOPs are not known; docs/inspect.md lists them."""


REFUSED = frozenset(
    """
    allclose argwhere as_strided.partial_views equal histogram histogramdd item
    jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary
    jiterator_binary_return_by_ref jiterator_unary linalg.lstsq linalg.lstsq.grad_oriented
    nn.GaussianNLLLoss nn.LinearCrossEntropyLoss nn.TransformerEncoder
    nn.functional.gaussian_nll_loss nonzero sparse.mm.reduce sparse.sampled_addmm tensor_split
    to_sparse unique unique_consecutive
    """.split()  # noqa: SIM905
)
"""Operators of which some samples need values that are not known, or sparse tensors, or a GPU, or
are made of modules on the CPU, or have no kernel on CUDA."""


class Counts(Observer):
    """The FLOPs of a run, and the operators that took part."""

    sees_storages = False

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.counted: set[Any] = set()
        self.bound: dict[Any, Any] = {}  # with the arguments of a call
        self.uncounted: set[str] = set()

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        flops = flops_of(func, args, kwargs, result)
        if flops is not None:
            self.flops += flops.total
            self.counted.add(getattr(func, "_overloadpacket", func))
        elif not hasattr(func, "_schema") or launches_nothing(func):
            return
        elif kind_of(func) is not None:
            self.bound.setdefault(func, tree_map(_on_meta, (args, kwargs)))
        elif memory_of(func, args, kwargs, result).written:
            self.uncounted.add(str(func._overloadpacket))


def _on_cuda(value: Any) -> Any:
    """A fake on CUDA; of lengths, pivots, indices and masks with their values, which are read."""
    made = forward.on_cuda(value)
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
        return made
    span = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True)) + 1
    flat = value.as_strided((span if value.numel() else 0,), (1,))  # elements may share memory
    values = torch.empty_like(flat, device="cuda").copy_(flat)
    return values.as_strided(value.shape, value.stride()) if value.numel() else made


def _on_meta(value: Any) -> Any:
    if not isinstance(value, FakeTensor):
        return torch.device("meta") if isinstance(value, torch.device) else value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


class Run(NamedTuple):
    """What a case does on fake CUDA."""

    forward: Counts
    backward: Counts
    of_torch: tuple[int, int]  # FLOPs by torch's counter, forward and backward
    num_factors: int  # floating point arguments


def run(case: forward.Case) -> Run:
    with fake_mode(fake_cuda=GPU):
        moved = tree_map(_on_cuda, case.args)
        leaves = [t for t in tree_leaves(moved) if isinstance(t, torch.Tensor) and t.requires_grad]
        counter = FlopCounterMode(display=False)
        with observing(Counts()) as counts, counter, forward.Operators() as seen:
            result = case.program(seen, *moved)
        of_forward = counter.get_total_flops()
        roots = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        back, of_backward = Counts(), 0
        if roots and leaves:
            ones = [torch.ones_like(t) for t in roots]
            counter = FlopCounterMode(display=False)
            with observing(back), counter:
                torch.autograd.grad(roots, leaves, ones, allow_unused=True)
            of_backward = counter.get_total_flops()
        return Run(counts, back, (of_forward, of_backward), len(leaves))


def multiplications(case: forward.Case) -> int:
    """The number of multiplications of a product, run on the CPU with ones."""
    first, args, kwargs = tree_map(_ones, case.args)
    kwargs = {**kwargs, **{name: 1 for name in ("alpha",) if name in kwargs}}
    biased = case.name.startswith(("nn.functional.", "add", "badd"))
    if biased and case.name.startswith("nn.functional."):
        at = 2 if "bilinear" in case.name else 1
        args = (*args[:at], *(None for _ in args[at : at + 1]), *args[at + 1 :])
        kwargs.pop("bias", None)
    elif biased:
        first = torch.zeros_like(first)
    result = case.program(forward.Operators(), first, args, kwargs)
    return round(sum(float(each.sum()) for each in tree_leaves(result)))


def _ones(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return torch.ones_like(value, dtype=torch.float64, requires_grad=False)
    return value


def wrong(case: forward.Case, found: Run) -> Iterator[str]:
    """What is wrong with the counts of a case."""
    own, back = found.forward, found.backward
    if case.name in PRODUCTS:
        least = 2 * multiplications(case)
        pads, is_chain = case.name in _CONVOLUTIONS, case.name in _CHAINS
        most = math.inf if pads else 3 * least if is_chain else least
        if not (((least <= own.flops or is_chain) and own.flops <= most) or _is_elementwise(own)):
            yield f"{own.flops} FLOPs for {least // 2} multiplications"
        if back.flops > max(own.flops, least) * found.num_factors:
            yield f"{back.flops} FLOPs backward, {own.flops} forward of {found.num_factors} factors"
    for counts, of_torch in zip((own, back), found.of_torch, strict=True):
        is_torchs = all(_is_torchs(packet) for packet in counts.counted)
        if is_torchs and counts.flops != of_torch:
            yield f"{counts.flops} FLOPs, {of_torch} by FlopCounterMode"
        for func, (args, kwargs) in counts.bound.items():
            if _multiplies(func, args, kwargs):
                yield f"{func} counts as bound by memory, and multiplies matrices"


def _is_elementwise(counts: Counts) -> bool:
    """Whether a product of nothing that is added up was computed as such: an outer product."""
    return not counts.counted


def _is_torchs(packet: Any) -> bool:
    return packet in flop_registry and "convolution_backward" not in str(packet)


def _multiplies(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether torch's decomposition of an operator, on meta tensors, has FLOPs."""
    decomposition = decomposition_table.get(func)
    if decomposition is None:
        return False
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            decomposition(*args, **kwargs)
    except Exception:  # decompositions raise many types, where they need values
        return False
    return counter.get_total_flops() > 0


class Outcome(NamedTuple):
    num_cases: int
    num_products: int
    refused: Counter[str]  # cases that raise on fakes, by operator
    lines: list[str]  # what is wrong
    uncounted: set[str]


def run_all(step: int, num_samples: int) -> Outcome:
    floats = [torch.float32]
    cases = itertools.chain(
        forward.operator_cases(floats, step, num_samples),
        forward.module_cases(floats, step, num_samples),
    )
    refused: Counter[str] = Counter()
    lines: list[str] = []
    uncounted: set[str] = set()
    num_cases = num_products = 0
    for case in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = run(case)
            except Exception:  # operators raise many types: values that are not known, mostly
                refused[case.name] += 1
                continue
            num_cases += 1
            num_products += case.name in PRODUCTS
            lines += [f"{case.name}: {text}" for text in wrong(case, found)]
        uncounted |= found.forward.uncounted | found.backward.uncounted
    return Outcome(num_cases, num_products, refused, lines, uncounted)


def _main() -> None:
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    found = run_all(step, 20)
    print("\n".join(dict.fromkeys(found.lines)))
    print(f"{found.num_cases} cases, {found.num_products} products, {len(found.lines)} wrong")
    print(f"refused: {dict(found.refused)}")
    print("FLOPs not known:", *sorted(found.uncounted))
    missing = UNCOUNTED - found.uncounted if step == 1 else set()
    new = (found.uncounted - UNCOUNTED) | missing | (found.refused.keys() - REFUSED)
    if new:
        print("not as listed:", *sorted(new))
    sys.exit(bool(found.lines or new))


if __name__ == "__main__":
    _main()
