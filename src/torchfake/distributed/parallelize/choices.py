"""Which blocks of a model are checkpointed, and how: the text of ``checkpoint=``.

Input: text such as ``full``, ``12`` or ``full:0-11,selective:12-15``. Output: the kind of each
block. Invariant: blocks are numbered from 0 in the order of the model; a block that is not named
keeps all of its activations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from torchfake.errors import InputsError, did_you_mean

CHECKPOINTS = ("none", "selective", "full")
"""What is kept of a block, most first."""

_FORM = "give none, selective, full, how many of the blocks (12), or full:0-11,selective:12-15"
_PART = re.compile(r"(\w+):(\d+(?:-\d+)?(?:\+\d+(?:-\d+)?)*)")


def check_choices(given: str | int) -> None:
    """Refuse what names no kind, and no blocks.

    Raises:
        InputsError: if it is not understood.
    """
    _ranges(given)


def kinds_of(given: str | int, num_blocks: int) -> list[str]:
    """The kind of each block.

    Raises:
        InputsError: if a block is named that the model does not have.

    >>> kinds_of("full:0+2-3", 5), kinds_of(2, 3)
    (['full', 'none', 'full', 'full', 'none'], ['full', 'full', 'none'])
    """
    if given in CHECKPOINTS:
        return [str(given)] * num_blocks
    kinds = ["none"] * num_blocks
    for kind, first, last in _ranges(given):
        if last >= num_blocks:
            raise InputsError(
                f"checkpoint={given!r} names block {last}, and the model has {num_blocks} blocks, "
                f"0 to {num_blocks - 1}"
            )
        kinds[first : last + 1] = [kind] * (last + 1 - first)
    return kinds


def text_of(kinds: Sequence[str]) -> str:
    """The text that names these kinds.

    >>> text_of(["full", "full", "selective", "none", "full"]), text_of(["full"] * 3)
    ('full:0-1+4,selective:2', 'full')
    """
    if len(set(kinds)) == 1:
        return kinds[0]
    parts = []
    for kind in reversed(CHECKPOINTS[1:]):
        runs = [f"{a}-{b}" if b > a else f"{a}" for found, a, b in runs_of(kinds) if found == kind]
        parts += [f"{kind}:{'+'.join(runs)}"] if runs else []
    return ",".join(parts)


def runs_of(kinds: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Each kind with the first and the last of neighbours that have it."""
    for kind, run in groupby(range(len(kinds)), key=lambda i: kinds[i]):
        positions = list(run)
        yield kind, positions[0], positions[-1]


def counts_of(given: str | int) -> dict[str, int] | None:
    """How many blocks are of each kind that is named; None if all are of one kind."""
    if given in CHECKPOINTS:
        return None
    counts: dict[str, int] = {}
    for kind, first, last in _ranges(given):
        counts[kind] = counts.get(kind, 0) + last + 1 - first
    return counts


def _ranges(given: str | int) -> list[tuple[str, int, int]]:
    """Each kind with the first and the last of the blocks that have it."""
    if given in CHECKPOINTS:
        return []
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return [("full", 0, given - 1)] if given else []
    if not isinstance(given, str):
        raise InputsError(f"checkpoint={given!r} is not understood: {_FORM}")
    if given.isdecimal():
        return _ranges(int(given))
    found: list[tuple[str, int, int]] = []
    for part in given.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or match[1] not in CHECKPOINTS:
            name = part.strip().partition(":")[0]
            hint = "" if match is None and name in CHECKPOINTS else did_you_mean(name, CHECKPOINTS)
            raise InputsError(f"checkpoint is {given!r}{hint or f': {_FORM}'}")
        found += [(match[1], *_range(text, given)) for text in match[2].split("+")]
    named = [i for _, first, last in found for i in range(first, last + 1)]
    twice = next((i for i in named if named.count(i) > 1), None)
    if twice is not None:
        raise InputsError(f"checkpoint={given!r} names block {twice} twice: name each once")
    return found


def _range(text: str, given: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if last and int(last) < int(first):
        raise InputsError(f"checkpoint={given!r} has {text}: give {last}-{first}")
    return int(first), int(last or first)
