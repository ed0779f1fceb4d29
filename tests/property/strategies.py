"""Programs of tensor operations, as plain data, drawn by Hypothesis.

Input: tables of operations, from :mod:`tests.property.operations`. Output: strategies of programs.
A program is a tuple of :class:`Step`; a step names an operation and holds the bytes by which that
picks its arguments when it is run.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from tests.property.operations import Operation


class Step(NamedTuple):
    """One operation, and the bytes it picks its arguments by."""

    name: str
    picks: bytes


Program = tuple[Step, ...]


def steps(*tables: dict[str, Operation]) -> st.SearchStrategy[Step]:
    """One step with an operation of `tables`, each table as likely as the next."""
    names = st.sampled_from(tables).flatmap(lambda table: st.sampled_from(sorted(table)))
    return st.builds(Step, names, st.binary(min_size=6, max_size=10))


def programs(
    *tables: dict[str, Operation], min_steps: int = 1, max_steps: int = 12
) -> st.SearchStrategy[Program]:
    """Programs whose steps are of `tables`."""
    listed = st.lists(steps(*tables), min_size=min_steps, max_size=max_steps)
    return listed.map(tuple)
