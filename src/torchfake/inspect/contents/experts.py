"""The number of parameters of a mixture of experts that are used for one token.

Input: a module. Output: an :class:`Active`, or None if the module has no routed experts. Invariant:
of routed experts the chosen share counts; all other parameters (shared experts, routers, attention,
embeddings) count in full. The module is not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from torch import nn

from torchfake.inspect.records.module_names import name_and_ancestors

_COUNTS = ("num_experts", "moe_num_experts", "total_experts", "num_local_experts")
_CHOSEN = ("top_k", "num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k", "top_k_experts")
"""Attributes of transformers' models for the number of experts, and of experts chosen per token."""


class Active(NamedTuple):
    """The parameters that are used for one token."""

    num_parameters: int
    experts: tuple[str, ...]  # "2 of 8", for each kind of layer


def active_parameters(module: nn.Module) -> Active | None:
    """The parameters of a mixture of experts used for one token; None without routed experts.

    >>> active_parameters(nn.Linear(3, 4)) is None
    True
    """
    return active_and_inactive(module)[0]


def active_and_inactive(module: nn.Module) -> tuple[Active | None, dict[str, int]]:
    """The parameters used for one token, as :func:`active_parameters`, and the number of routed
    experts' parameters that are not used for it, by the full name of each module that has some.
    """
    by_name = dict(module.named_modules())
    groups = [*_groups(by_name)]
    if not (shares := _shares(groups)):
        return None, {}
    whole, met = 0, set[int]()
    left_out: dict[int, dict[str, int]] = {}  # numerators by denominator and module
    for name, owner in by_name.items():
        for parameter in owner._parameters.values():
            if parameter is None or id(parameter) in met:
                continue
            met.add(id(parameter))
            whole += (num_values := parameter.numel())
            if (share := shares.get(id(parameter))) is not None:
                names = left_out.setdefault(share.number, {})
                names[name] = names.get(name, 0) + num_values * share.num_left_out
    texts = [f"{chosen} of {number}" for _, chosen, number in groups]
    inactive = _with_descendants(left_out, [*by_name])
    active = Active(round(whole - inactive[""]), tuple(dict.fromkeys(texts)))
    return active, {name: round(number) for name, number in inactive.items()}


def _with_descendants(
    left_out: dict[int, dict[str, int]], names: list[str]
) -> dict[str, Fraction | int]:
    """Sum fractions, given as numerators by denominator and module, over each module and its
    descendants. In `names`, each module comes after its parent.
    """
    found: dict[str, Fraction | int] = {}
    for number, numerators in left_out.items():
        for name in reversed(names[1:]):
            if name in numerators:
                parent = name.rpartition(".")[0]
                numerators[parent] = numerators.get(parent, 0) + numerators[name]
        for name, numerator in numerators.items():
            found[name] = found.get(name, 0) + Fraction(numerator, number)
    return found


def active_to_dict(active: Active | None) -> dict[str, Any]:
    """The active parameters as a dict for JSON; an empty dict for None."""
    if active is None:
        return {}
    return {"active": {"num_parameters": active.num_parameters, "experts": [*active.experts]}}


def parameters_to_dict(module: nn.Module) -> dict[str, Any]:
    """The number of parameters, and of active ones, as a dict for JSON."""
    total = sum(parameter.numel() for parameter in module.parameters())
    of_all = {"num_parameters": total} if total else {}
    return {**of_all, **active_to_dict(active_parameters(module))}


class _Share(NamedTuple):
    """The share of a parameter that is not used for one token, as a fraction."""

    num_left_out: int
    number: int


def _shares(groups: list[tuple[nn.Module, int, int]]) -> dict[int, _Share]:
    """The shares of the parameters of routed experts, by the parameter's id."""
    found: dict[int, _Share] = {}
    for experts, chosen, number in groups:
        share = _Share(number - min(chosen, number), number)
        for owner in experts.modules():
            found.update((id(p), share) for p in owner._parameters.values() if p is not None)
    return found


def _groups(by_name: dict[str, nn.Module]) -> Iterator[tuple[nn.Module, int, int]]:
    """The modules that hold routed experts, each with the numbers of chosen and of all experts."""
    chosen_near = cache(lambda path: _chosen_near(by_name[path]))
    last = ""
    for name, experts in by_name.items():
        if last and name.startswith(f"{last}."):
            continue  # inside of the last module found
        number = _number_of_experts(name, experts) if name else 0
        if number < 2:
            continue
        owners = name_and_ancestors(name.rpartition(".")[0])
        if chosen := _chosen_by(experts) or next(filter(None, map(chosen_near, owners)), 0):
            last = name
            yield experts, chosen, number


def _number_of_experts(name: str, module: nn.Module) -> int:
    """The number of experts in a module, stacked in its parameters or as its children; or 0."""
    is_named = "Expert" in type(module).__name__ or name.rpartition(".")[2] == "experts"
    if not is_named or "shared" in name.rpartition(".")[2]:
        return 0
    number = next((n for key in _COUNTS if (n := _int_of(module, key))), 0)
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return number or len(module)
    own = [p for p in module._parameters.values() if p is not None]
    if not number and own and own[0].dim() == 3:
        number = own[0].shape[0]
    if not number or not own:  # of two levels, for instance: a grid of experts
        return 0
    return number if all(p.dim() and p.shape[0] % number == 0 for p in own) else 0


def _chosen_near(owner: nn.Module) -> int:
    """The number of experts in `owner` chosen per token, by a router in it or its config; or 0.

    Results are cached per owner, which may contain thousands of experts.
    """
    found = next(filter(None, map(_chosen_by, (owner, *owner.children()))), 0)
    return found or _chosen_of(getattr(owner, "config", None))


def _chosen_by(near: nn.Module) -> int:
    if found := next((n for key in _CHOSEN if (n := _int_of(near, key))), 0):
        return found
    match = re.search(r"Top(\d+)Router", type(near).__name__)
    return 0 if match is None else int(match[1])


def _chosen_of(config: Any) -> int:
    parts = (config, getattr(config, "ffn_config", None), getattr(config, "text_config", None))
    return next((n for part in parts for key in _CHOSEN if (n := _int_of(part, key))), 0)


def _int_of(owner: Any, key: str) -> int:
    found = getattr(owner, key, 0)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
