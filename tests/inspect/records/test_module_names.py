"""Folded names: they stand for the names that were folded, and no others."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from torchfake.inspect.records.module_names import fold_names

NAMES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.sampled_from("xy"), st.integers(0, 3)),
    unique=True,
    max_size=60,
)


def _ranges(text: str) -> list[str]:
    found = []
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found += map(str, range(int(first), int(last or first) + 1))
    return found


@settings(deadline=None)  # other processes may take the time
@given(NAMES)
def test_folded_names_are_those_that_were_folded(keys: list[tuple[str, int, str, int]]) -> None:
    names = [".".join(map(str, key)) for key in keys]
    lines = fold_names(names)
    assert sum(count for _, count in lines) == len(names)
    if any("..." in text for text, _ in lines):
        return  # said in short
    unfolded = [
        f"{a}.{i}.{x}.{j}"
        for text, _ in lines
        for a, first, x, second in [text.split(".")]
        for i in _ranges(first)
        for j in _ranges(second)
    ]
    assert sorted(unfolded) == sorted(names)
