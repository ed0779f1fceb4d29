"""Torch's operators and modules with one tensor of another size: refused as in eager, or accepted.

Input: the name of an operator or module. Output: its calls, in each of which one tensor has another
size than in the sample. Invariant: elements are those of the sample, so that an index that was in
range still is, and a length is still positive.

``python -m tests.opinfo.wrong_sizes`` makes all of them.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.opinfo.shortfalls import WRONG_SIZES
from tests.strides.calls import NAMES, Case, dtype_of, is_strided, samples_of
from tests.strides.children import Oracle, differences_of
from tests.strides.outcomes import difference, fake_outcome
from tests.strides.shortfalls import KINDS

Change = Callable[[Tensor], Tensor]


def _longer(dim: int, tensor: Tensor) -> Tensor:
    """The last element of a dim once more."""
    return torch.cat([tensor, tensor.narrow(dim, tensor.shape[dim] - 1, 1)], dim)


def _cut(dim: int, length: int, tensor: Tensor) -> Tensor:
    return tensor.narrow(dim, 0, length).clone()


def changes_of(tensor: Tensor) -> Iterator[tuple[str, Change]]:
    """Other sizes for a tensor: of each dim, and other dims."""
    for dim, length in enumerate(tensor.shape):
        if length:
            yield f"dim {dim} longer", partial(_longer, dim)
            yield f"dim {dim} empty", partial(_cut, dim, 0)
        if length > 1:
            yield f"dim {dim} shorter", partial(_cut, dim, length - 1)
        if length > 2:
            yield f"dim {dim} one", partial(_cut, dim, 1)
    yield "one more dim", lambda t: t[None].clone()
    yield "two more dims", lambda t: t[None, None].clone()
    if tensor.dim() and tensor.shape[0]:
        yield "one dim less", lambda t: t[0].clone()
    if tensor.dim() > 1 and tensor.numel():
        yield "no dims", lambda t: t.reshape(-1)[0].clone()


def cases_of(name: str, limit: int | None, step: int = 1) -> Iterator[Case]:
    """The calls of the first samples, or one in `step` of these calls."""
    strided = (sample for sample in samples_of(name, dtype_of(name)) if is_strided(sample[2]))
    changed = itertools.islice(strided, limit)
    every = itertools.chain.from_iterable(_changed(name, *sample) for sample in changed)
    return itertools.islice(every, zlib.crc32(name.encode()) % step, None, step)


def _changed(name: str, index: int, make: Any, arguments: Any) -> Iterator[Case]:
    leaves, structure = tree_flatten(arguments)
    detached: dict[int, Tensor] = {}  # a sample has tensors that are no leaves, and fakes are
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            detached[id(leaf)] = leaf.detach().requires_grad_(leaf.requires_grad)
    leaves = [detached.get(id(leaf), leaf) for leaf in leaves]
    for position, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            continue
        if any(leaf is earlier for earlier in leaves[:position]):
            continue
        for shown, change in changes_of(leaf):
            other = change(leaf.detach()).requires_grad_(leaf.requires_grad)
            given = [other if each is leaf else each for each in leaves]
            sizes = f"tensor {position} of {tuple(leaf.shape)}"
            yield Case(name, index, sizes, shown, make, tree_unflatten(given, structure))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--limit", type=int, default=3, help="samples of each operator")
    parser.add_argument("--step", type=int, default=1, help="make one call in STEP")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="show each call that differs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    total, counts = 0, collections.Counter[str]()
    unknown: dict[tuple[str, str], str] = {}
    names = options.names or NAMES[options.part :: options.parts]
    cases = partial(cases_of, limit=options.limit, step=options.step)
    for name, kind, text in differences_of(names, Oracle(cases, fake_outcome, difference)):
        total += 1
        if kind is None:
            continue
        counts[kind] += 1
        if options.verbose:
            print(f"{kind} | {name} | {text}", flush=True)
        if kind not in KINDS and name not in WRONG_SIZES:
            unknown.setdefault((name, kind), text)
    print(f"{total} calls of {len(names)} names; differ: {dict(counts)}")
    print("\n".join(f"{name}, {kind}: {text}" for (name, kind), text in unknown.items()))
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
