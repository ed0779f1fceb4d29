"""The operators of a run whose FLOPs are not known, with their calls and bytes.

Input: calls of operators. Output: a tuple of :class:`Uncounted`, the most bytes first. Invariant:
an operator that writes memory has a formula, or is bound by memory, or is among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from torchfake.inspect.arithmetic.formulas import has_formula
from torchfake.inspect.arithmetic.kinds import kind_of
from torchfake.inspect.arithmetic.moved_bytes import launches_nothing
from torchfake.inspect.records.units import bytes_text, operations_unit

_MAX_SHOWN = 6


class Uncounted(NamedTuple):
    """An operator whose FLOPs are not known, in the calls of a run."""

    operator: str  # "aten.linalg_qr"
    num_calls: int
    num_bytes: int  # that its calls read and write

    def __str__(self) -> str:
        calls = f"{self.num_calls:,} call{'s' * (self.num_calls > 1)}"
        return f"{self.operator} ({calls}, {bytes_text(self.num_bytes)})"


def is_uncounted(func: Any) -> bool:
    """Whether the FLOPs of an operator are not known, and may be more than its bytes tell."""
    return _may_compute(func) and not has_formula(func)


@cache
def _may_compute(func: Any) -> bool:
    return not launches_nothing(func) and kind_of(func) is None


def uncounted_of(calls: Iterable[tuple[str, int]]) -> tuple[Uncounted, ...]:
    """The operators of some calls, each call given as the operator's name and its bytes."""
    found: dict[str, list[int]] = {}
    for name, num_bytes in calls:
        found.setdefault(name.replace("::", "."), []).append(num_bytes)
    rows = [Uncounted(name, len(each), sum(each)) for name, each in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.num_bytes, row.operator)))


def most_of_any(ranks: Iterable[Sequence[Uncounted]]) -> tuple[Uncounted, ...]:
    """The operators of several ranks, each as on the rank where it moves the most bytes."""
    most: dict[str, Uncounted] = {}
    for row in (row for rank in ranks for row in rank):
        known = most.get(row.operator)
        if known is None or row.num_bytes > known.num_bytes:
            most[row.operator] = row
    return tuple(sorted(most.values(), key=lambda row: (-row.num_bytes, row.operator)))


def uncounted_line(found: Sequence[Uncounted]) -> tuple[str, str]:
    """The line that names the operators, as its name and its text; "" if there are none."""
    return "not counted", _listed(f"no {operations_unit()} known for", found)


def untimed_line(found: Sequence[Uncounted]) -> tuple[str, str]:
    """The line that names what runs on the CPU, as its name and its text; "" if nothing does."""
    return "not timed", _listed("what reads or writes CPU memory", found)


def _listed(what: str, found: Sequence[Uncounted]) -> str:
    if not found:
        return ""
    more = [f"{len(found) - _MAX_SHOWN} more operators"] if len(found) > _MAX_SHOWN else []
    return f"{what}: {', '.join([*map(str, found[:_MAX_SHOWN]), *more])}"


def uncounted_to_dict(found: Sequence[Uncounted]) -> dict[str, Any]:
    """The operators as a dict for JSON; an empty dict if there are none."""
    return {"no_flops_known_for": [row._asdict() for row in found]} if found else {}


def untimed_to_dict(found: Sequence[Uncounted]) -> dict[str, Any]:
    """What runs on the CPU, as a dict for JSON; an empty dict if nothing does."""
    return {"not_timed_on_cpu": [row._asdict() for row in found]} if found else {}
