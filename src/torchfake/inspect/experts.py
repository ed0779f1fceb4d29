"""How many parameters of a mixture of experts compute a token.

Input: a module. Output: an :class:`Active`, or None if it has no experts of which some are chosen.
Invariant: all but routed experts counts whole: shared experts, routers, attention, embeddings; of
routed experts as large a share as are chosen of them. Nothing is run. Called by: ``summary`` and
``estimates``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from torch import nn

from torchfake.inspect.describe.module_names import name_and_ancestors

_COUNTS = ("num_experts", "moe_num_experts", "total_experts", "num_local_experts")
_CHOSEN = ("top_k", "num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k", "top_k_experts")
"""Names that models of transformers have for the number of experts, and of those chosen."""


class Active(NamedTuple):
    """The parameters that compute a token."""

    num_parameters: int
    experts: tuple[str, ...]  # "2 of 8", of each kind of layer


def active_parameters(module: nn.Module) -> Active | None:
    """The parameters that compute a token, where some experts of many are chosen for it.

    >>> active_parameters(nn.Linear(3, 4)) is None
    True
    """
    shares = {id(p): share for p, share in _routed(module)}
    if not shares:
        return None
    found: Fraction = Fraction(0)
    for parameter in module.parameters():
        found += parameter.numel() * shares.get(id(parameter), Fraction(1))
    texts = [f"{chosen} of {number}" for _, chosen, number in _groups(module)]
    return Active(round(found), tuple(dict.fromkeys(texts)))


def inactive_by_name(module: nn.Module) -> dict[str, int]:
    """Parameters of routed experts that do not compute a token, of each module that has some."""
    shares = {id(p): share for p, share in _routed(module)}
    found: dict[str, Fraction] = {}
    seen: set[int] = set()
    for name, parameter in module.named_parameters():
        share = shares.get(id(parameter))
        if share is None or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        for owner in name_and_ancestors(name.rpartition(".")[0]):
            found[owner] = found.get(owner, Fraction(0)) + parameter.numel() * (1 - share)
    return {name: round(number) for name, number in found.items()}


def active_to_dict(active: Active | None) -> dict[str, Any]:
    """The same, ready for JSON; nothing if there is none."""
    if active is None:
        return {}
    return {"active": {"num_parameters": active.num_parameters, "experts": [*active.experts]}}


def _routed(module: nn.Module) -> Iterator[tuple[nn.Parameter, Fraction]]:
    """The parameters of routed experts, and the share of them that computes a token."""
    for experts, chosen, number in _groups(module):
        for parameter in experts.parameters():
            yield parameter, Fraction(min(chosen, number), number)


def _groups(module: nn.Module) -> Iterator[tuple[nn.Module, int, int]]:
    """Modules that hold experts, with how many are chosen and how many there are."""
    by_name = dict(module.named_modules())
    last = ""
    for name, experts in by_name.items():
        if last and name.startswith(f"{last}."):
            continue  # inside of one
        number = _number_of_experts(name, experts)
        if number < 2:
            continue
        chosen = _number_chosen(name, by_name, experts)
        if chosen:
            last = name
            yield experts, chosen, number


def _number_of_experts(name: str, module: nn.Module) -> int:
    """How many experts a module holds: stacked in its parameters, or as its children; 0: none."""
    is_named = "Expert" in type(module).__name__ or name.rpartition(".")[2] == "experts"
    if not is_named or "shared" in name.rpartition(".")[2]:
        return 0
    number = next((n for key in _COUNTS if (n := _int_of(module, key))), 0)
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return number or len(module)
    own = [p for p in module._parameters.values() if p is not None]
    if not number and own and own[0].dim() == 3:
        number = own[0].shape[0]
    return number if own and all(p.dim() and p.shape[0] % number == 0 for p in own) else 0


def _number_chosen(name: str, by_name: dict[str, nn.Module], experts: nn.Module) -> int:
    """How many are chosen: as the nearest router says, else the nearest config; 0: not known."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        owner = by_name[path]
        for near in (experts, owner, *owner.children()):
            for key in _CHOSEN:
                if found := _int_of(near, key):
                    return found
            if (match := re.search(r"Top(\d+)Router", type(near).__name__)) is not None:
                return int(match[1])
        if found := _chosen_of(getattr(owner, "config", None)):
            return found
    return 0


def _chosen_of(config: Any) -> int:
    parts = (config, getattr(config, "ffn_config", None), getattr(config, "text_config", None))
    return next((n for part in parts for key in _CHOSEN if (n := _int_of(part, key))), 0)


def _int_of(owner: Any, key: str) -> int:
    found = getattr(owner, key, 0)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
