"""Maps of which expert a token goes to: a row for each token, one where it goes and zero elsewhere.

Input: operators as they run. Output: the sum of such a map over its tokens, how many go to each
expert. Invariant: a map is one only until something else writes to its memory.

Routers make them by ``zeros(tokens, experts).scatter_(-1, chosen, 1)``, and ``one_hot`` by
``chosen == arange(experts)``. They are too large for their values to be kept, and these depend on
values that nobody knows.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from torchfake._core.schemas import OpTraits
from torchfake._core.storage import Storage
from torchfake._unknown_values import routing

_ZEROS = frozenset(("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::zero_"))
_MARKS = frozenset(("aten::scatter", "aten::scatter_"))
_CASTS = frozenset(("aten::_to_copy", "aten::clone"))


class Choices:
    """The maps that are alive."""

    def __init__(self) -> None:
        # By memory: the shape of the whole map, and how many ones are in it.
        self._maps: weakref.WeakKeyDictionary[Storage, tuple[torch.Size, int]] = (
            weakref.WeakKeyDictionary()
        )

    def counted(self, packet: str, args: Any) -> torch.Tensor | None:
        """How many tokens go to each expert, if that is what a call gives; None if not."""
        if packet != "aten::sum" or len(args) < 2 or not args[1]:
            return None
        known = self._map_of(args[0])
        if known is None or known[1] == 0:
            return None
        shape, number = known
        summed = {dim % len(shape) for dim in args[1]}
        if args[2:3] == (True,) or summed != set(range(len(shape) - 1)):
            return None
        return routing.spread(number, shape[-1])

    def ran(self, traits: OpTraits, args: Any, result: Any) -> None:
        """Note what a call has made, or written."""
        ones = self._ones_after(traits.packet, args)
        for position in traits.mutated_positions:
            written: Any = args[position] if position < len(args) else None
            if hasattr(written, "_fake_storage"):
                self._maps.pop(written._fake_storage, None)
        storage = getattr(result, "_fake_storage", None)
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
        if packet not in _MARKS or len(args) < 4 or isinstance(args[3], torch.Tensor):
            return None
        zeros, dim, chosen, mark = args[:4]
        known = self._map_of(zeros)
        is_last = dim in (-1, zeros.dim() - 1) and chosen.shape[:-1] == zeros.shape[:-1]
        return chosen.numel() if known and known[1] == 0 and is_last and mark == 1 else None

    def _map_of(self, tensor: Any) -> tuple[torch.Size, int] | None:
        """The map that a tensor is all of."""
        storage = getattr(tensor, "_fake_storage", None)
        known = None if storage is None else self._maps.get(storage)
        return known if known is not None and tensor.shape == known[0] else None


def _ones_of_equal(chosen: Any, numbers: Any) -> int | None:
    """The ones in ``chosen == numbers``, if these are the numbers of all experts."""
    if not isinstance(numbers, torch.Tensor) or not isinstance(chosen, torch.Tensor):
        return None
    if not routing.is_known(numbers):
        chosen, numbers = numbers, chosen
    is_choice = chosen.dim() > 1 and chosen.shape[-1] == 1 and not routing.is_known(chosen)
    if not is_choice or numbers.dim() != 1 or not routing.is_known(numbers):
        return None
    is_all = routing.value_of(numbers).tolist() == list(range(numbers.numel()))
    return chosen.numel() if is_all else None


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory, in order."""
    return tensor.is_contiguous() and not tensor.storage_offset()
