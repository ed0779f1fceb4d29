"""Balanced routing: the assumption that all experts get equally many tokens.

Input: operators that count tokens, or exchange such counts, and their results. Output: the counts,
as known values of the results. Invariant: assumptions are listed with the answers; a tensor counts
as a map of experts only until another operator writes to its storage.

A token goes to `k` experts, whose ranks have to know how many rows each rank sends. The counts
depend on values. Routers are trained, and deployed with a bias, so that experts get equally many
tokens; counts that do not divide evenly are spread over all experts.

Routers count with ``bincount``, ``histc`` or ``scatter_add``, or they sum a map: a row for each
token, one where the token goes and zero elsewhere, from
``zeros(tokens, experts).scatter_(-1, chosen, 1)`` or ``chosen == arange(experts)``. Maps are too
large for their values to be kept.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchfake._torch.distributed.dtensors import process_group_of
from torchfake.observe import (
    FakeTensor,
    Observer,
    OpTraits,
    Storage,
    assume_value,
    known_value,
    no_mode,
    storage_of,
    traits_of,
)

BALANCED = "balanced routing"

_COUNTS = frozenset(
    (
        "aten::bincount", "aten::histc", "aten::index_add_", "aten::scatter_add",
        "aten::scatter_add_",
    )
)  # fmt: skip
"""Operators that count the occurrences of numbers."""

_EXCHANGES = frozenset(
    (
        "c10d::alltoall_base_", "_c10d_functional::all_to_all_single",
        "_c10d_functional_autograd::all_to_all_single",
    )
)  # fmt: skip
"""Operators with which ranks exchange their counts."""

_ZEROS = frozenset(("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::zero_"))
_MARKS = frozenset(("aten::scatter", "aten::scatter_"))
_CASTS = frozenset(("aten::_to_copy", "aten::clone"))


class BalancedRouting(Observer):
    """Observes operators, and assumes equal counts of tokens."""

    def __init__(self) -> None:
        super().__init__()
        # The live maps, by storage: the shape of the map, and the number of ones in it.
        self._maps: weakref.WeakKeyDictionary[Storage, tuple[torch.Size, int]] = (
            weakref.WeakKeyDictionary()
        )

    def call_operator(
        self, run: Callable[..., Any], func: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        """Run an operator. If its result is unknown counts, assume that they are equal."""
        traits = traits_of(func)
        counts = self._counts_of(traits.packet, args, kwargs)
        result = run(func, types, args, kwargs)
        self._note_map(traits, args, result)
        written = args[0] if traits.packet == "c10d::alltoall_base_" else result
        storage = storage_of(written)
        if counts is not None and storage is not None and storage.is_unknown:
            if written.shape == counts.shape and _is_whole(written):
                assume_value(written, counts, traits.name, BALANCED)
        return result

    def _counts_of(self, packet: str, args: Any, kwargs: Any) -> torch.Tensor | None:
        """The result of a call if all counts are equal; None if the call does not count."""
        if packet in _COUNTS:
            return _counted(packet, args, kwargs)
        if packet in _EXCHANGES:
            return _exchanged(packet, args)
        return self._summed(args) if packet == "aten::sum" else None

    def _summed(self, args: Any) -> torch.Tensor | None:
        """The sum of a map over its tokens."""
        known = self._map_of(args[0])
        if len(args) < 2 or not args[1] or known is None or known[1] == 0:
            return None
        shape, number = known
        return _spread(number, shape[-1]) if _leading_dims(args) == set() else None

    def _note_map(self, traits: OpTraits, args: Any, result: Any) -> None:
        """Note a map that a call has created, and forget maps that it has written to."""
        ones = self._ones_after(traits.packet, args)
        for position in traits.mutated_positions:
            written = storage_of(args[position]) if position < len(args) else None
            if written is not None:
                self._maps.pop(written, None)
        storage = storage_of(result)
        if ones is not None and storage is not None and _is_whole(result):
            self._maps[storage] = result.shape, ones

    def _ones_after(self, packet: str, args: Any) -> int | None:
        if packet in _ZEROS:
            return 0
        if packet in _CASTS:
            known = self._map_of(args[0])
            return None if known is None else known[1]
        if packet == "aten::eq":
            return _ones_of_equal(*args[:2])
        if packet == "aten::sum":
            known, left = self._map_of(args[0]), _leading_dims(args)
            return known[1] if known and left else None
        if packet not in _MARKS or len(args) < 4 or isinstance(args[3], torch.Tensor):
            return None
        zeros, dim, chosen, mark = args[:4]
        known = self._map_of(zeros)
        is_last = dim in (-1, zeros.dim() - 1) and chosen.shape[:-1] == zeros.shape[:-1]
        return chosen.numel() if known and known[1] == 0 and is_last and mark == 1 else None

    def _map_of(self, tensor: Any) -> tuple[torch.Size, int] | None:
        """The shape and the ones of a map, if `tensor` is a whole map."""
        storage = storage_of(tensor)
        known = None if storage is None else self._maps.get(storage)
        return known if known is not None and tensor.shape == known[0] else None


def _leading_dims(args: Any) -> set[int] | None:
    """The dims before the last that a sum keeps; None if it removes others than dims before it."""
    if len(args) < 2 or not args[1] or args[2:3] == (True,):
        return None
    last = args[0].dim() - 1
    summed = {dim % (last + 1) for dim in args[1]}
    return None if last in summed else set(range(last)) - summed


def _counted(packet: str, args: Any, kwargs: Any) -> torch.Tensor | None:
    if packet == "aten::bincount":
        tokens, weights = args[0], args[1] if len(args) > 1 else kwargs.get("weights")
        num_experts = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
        is_counted = weights is None and num_experts and not _is_known(tokens)
        return _spread(tokens.numel(), num_experts) if is_counted else None
    if packet == "aten::histc":
        tokens, num_experts = args[0], args[1] if len(args) > 1 else 100
        return None if _is_known(tokens) else _spread(tokens.numel(), num_experts)
    counts, dim, index, source = args[:4]
    is_list = counts.dim() == index.dim() == 1 and dim in (0, -1)
    is_counted = _is_all(counts, 0) and not counts.dtype.is_floating_point
    if not is_list or _is_known(index) or not is_counted:
        return None
    if _is_known(source) and not _is_all(source, 1):
        return None
    return _spread(index.numel(), counts.numel())


def _exchanged(packet: str, args: Any) -> torch.Tensor | None:
    """The counts that a rank receives if all ranks have equal counts: its own part, from each."""
    sent, group = (args[1], args[2]) if packet.startswith("c10d::") else (args[0], args[3])
    splits = args[3:5] if packet.startswith("c10d::") else args[1:3]
    is_count = not (sent.dtype.is_floating_point or sent.dtype.is_complex)
    counts = known_value(sent) if is_count and sent.dim() else None
    if counts is None:
        return None
    process_group = process_group_of(group)
    rank, size = process_group.rank(), process_group.size()
    rows = len(counts) // size
    is_even = all(not split or set(split) == {rows} for split in splits)
    if len(counts) % size or not is_even:
        return None
    part = counts[rank * rows : (rank + 1) * rows]
    return part.repeat(size, *[1] * (part.dim() - 1))


def _spread(number: int, parts: int) -> torch.Tensor:
    """Split a number into integers that are equal, or differ by one."""
    ends = [-(-number * i // parts) for i in range(parts + 1)]
    with no_mode():
        return torch.tensor([end - start for start, end in itertools.pairwise(ends)], device="cpu")


def _is_known(tensor: Any) -> bool:
    storage = storage_of(tensor)
    return storage is not None and storage.is_known


def _is_all(tensor: Any, number: int) -> bool:
    value = known_value(tensor)
    return value is not None and bool((value == number).all())


def _ones_of_equal(chosen: Any, numbers: Any) -> int | None:
    """The number of ones in ``chosen == numbers``, if `numbers` are the indices of all experts."""
    if not isinstance(numbers, FakeTensor) or not isinstance(chosen, FakeTensor):
        return None
    if not _is_known(numbers):
        chosen, numbers = numbers, chosen
    is_choice = chosen.dim() > 1 and chosen.shape[-1] == 1 and not _is_known(chosen)
    if not is_choice or numbers.dim() != 1:
        return None
    value = known_value(numbers)
    is_all = value is not None and value.tolist() == list(range(numbers.numel()))
    return chosen.numel() if is_all else None


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor covers its whole storage, contiguously."""
    return tensor.is_contiguous() and not tensor.storage_offset()
