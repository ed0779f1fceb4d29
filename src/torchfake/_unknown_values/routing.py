"""What is taken of a router's choice, which depends on values: experts get equally many tokens.

Input: an operator that counts tokens, or exchanges such counts, its arguments and its result.
Output: the counts, as the known value of the result. Invariant: nothing is assumed unless a plan
says so; what was, is listed with the answers.

A token goes to `k` experts, whose ranks have to be told how many rows each of them sends. Routers
are trained so that experts get equally many, and deployed with a bias for that; which ones get more
in a step is known to nobody before. Numbers that do not divide are spread over all experts.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from torchfake._core.memory import view_of
from torchfake._torch import dispatcher, distributed
from torchfake._unknown_values import answerers

BALANCED = "balanced routing"

_COUNTS = frozenset(("aten::scatter_add_", "aten::scatter_add", "aten::histc", "aten::index_add_"))
"""Operators that count how often a number is in a list."""

_EXCHANGES = frozenset(
    (
        "c10d::alltoall_base_", "_c10d_functional::all_to_all_single",
        "_c10d_functional_autograd::all_to_all_single",
    )
)  # fmt: skip
"""Operators by which ranks tell each other what they have counted."""


def counted(packet: str, args: Any) -> torch.Tensor | None:
    """The counts that a call gives if all are equal, before it is run; None if it gives none."""
    if packet in _COUNTS:
        return _counted(packet, args)
    if packet in _EXCHANGES:
        return _exchanged(packet, args)
    return None


def assume(result: Any, counts: torch.Tensor, asked_by: str) -> None:
    """Give a result that is not known these counts."""
    storage = getattr(result, "_fake_storage", None)
    if storage is None or not storage.is_unknown or result.shape != counts.shape:
        return
    answerers.note(result, asked_by, counts.flatten()[0].item(), BALANCED)
    with dispatcher.no_interception(), dispatcher.in_fake_slot(None):
        made = counts.to(result.dtype).clone(memory_format=torch.contiguous_format)
        storage.value = made.untyped_storage()


def _counted(packet: str, args: Any) -> torch.Tensor | None:
    if packet == "aten::histc":
        tokens, num_experts = args[0], args[1] if len(args) > 1 else 100
        return None if is_known(tokens) else spread(tokens.numel(), num_experts)
    counts, dim, index, source = args[:4]
    is_list = counts.dim() == index.dim() == 1 and dim in (0, -1)
    is_counted = _is_all(counts, 0) and not counts.dtype.is_floating_point
    if not is_list or is_known(index) or not is_counted:
        return None
    if is_known(source) and not _is_all(source, 1):
        return None
    return spread(index.numel(), counts.numel())


def _exchanged(packet: str, args: Any) -> torch.Tensor | None:
    """What a rank receives if all have counted the same: its own part, of each of them."""
    sent, group = (args[1], args[2]) if packet.startswith("c10d::") else (args[0], args[3])
    splits = args[3:5] if packet.startswith("c10d::") else args[1:3]
    is_count = not (sent.dtype.is_floating_point or sent.dtype.is_complex)
    if not is_count or not is_known(sent) or not sent.dim():
        return None
    process_group = distributed.process_group_of(group)
    rank, size = process_group.rank(), process_group.size()
    rows = len(sent) // size
    is_even = all(not split or set(split) == {rows} for split in splits)
    if len(sent) % size or not is_even:
        return None
    part = value_of(sent)[rank * rows : (rank + 1) * rows]
    return part.repeat(size, *[1] * (part.dim() - 1))


def spread(number: int, parts: int) -> torch.Tensor:
    """A number as a sum of whole numbers that are equal, or differ by one."""
    with dispatcher.no_interception(), dispatcher.in_fake_slot(None):
        ends = [-(-number * i // parts) for i in range(parts + 1)]
        return torch.tensor([end - start for start, end in itertools.pairwise(ends)])


def is_known(tensor: Any) -> bool:
    storage = getattr(tensor, "_fake_storage", None)
    return storage is not None and storage.is_known


def _is_all(tensor: Any, number: int) -> bool:
    if not is_known(tensor):
        return False
    return bool((value_of(tensor) == number).all())


def value_of(fake: Any) -> torch.Tensor:
    with dispatcher.no_interception(), dispatcher.in_fake_slot(None):
        return view_of(fake._fake_storage.known_bytes(), fake._fake_meta)
