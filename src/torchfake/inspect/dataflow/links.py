"""The calls and functions of a recording that are shown at a depth, and the links between them.

Input: a recording, and which calls are opened. Output: links between calls that are not opened and
functions that combine tensors from several places. Invariant: a link goes from an earlier call or
function to a later one.

A function that reads from one place only, such as a reshape, is not shown: its results count as
those of that place. Neither is a function that reads only from inputs, as for a mask.
"""

from __future__ import annotations

from typing import NamedTuple

from torchfake.inspect.dataflow.recording import OUTSIDE, Read, Recording
from torchfake.inspect.dataflow.signatures import Item

FUNCTIONS = ("joining", "all", "none")
"""Which functions between modules are shown: those that combine tensors of several, or all."""


class Seen(NamedTuple):
    """The links and functions that are shown, before folding."""

    links: list[tuple[Item, Item, Read]]
    functions: set[int]  # the numbers of functions with places of their own


def box_of_calls(recording: Recording, opened: set[int]) -> list[int | None]:
    """For each call, the outermost call around it, or itself, that is not opened; else None."""
    found: list[int | None] = []
    for number, call in enumerate(recording.calls):
        around = None if call.scope == OUTSIDE else found[call.scope]
        found.append(around if around is not None else None if number in opened else number)
    return found


def see(recording: Recording, opened: set[int], show: str) -> Seen:
    """The links and functions of a recording that are shown if these calls are opened."""
    boxes = box_of_calls(recording, opened)
    sources: list[dict[Item, None]] = []  # of the results of each function
    seen = Seen([], set())
    for number, function in enumerate(recording.functions):
        is_outside = function.scope == OUTSIDE
        box = None if is_outside else boxes[function.scope]
        place = Item("function", number) if box is None else Item("call", box)
        comes_from = {source: None for read in function.reads for source in sources[read.maker]}
        is_kept = box is not None or is_outside
        if not is_kept and _is_shown(recording, number, comes_from, show, seen.functions):
            seen.functions.add(number)
            is_kept = True
        if not is_kept:
            sources.append(comes_from)
            continue
        sources.append({place: None})
        seen.links.extend(
            (source, place, read)
            for read in function.reads
            for source in sources[read.maker]
            if source != place
        )
    return seen


def _is_shown(
    recording: Recording, number: int, sources: dict[Item, None], show: str, shown: set[int]
) -> bool:
    """Whether a function has a place of its own."""
    if show == "none" or recording.functions[number].name == "return":
        return False
    if show == "all":
        return True
    from_module = any(item.kind == "call" or item.number in shown for item in sources)
    is_joining = len(sources) > 1 or len(recording.functions[number].reads) >= _MANY
    return is_joining and from_module


_MANY = 3
"""So many tensors make a function one that combines several, even if they are parts of one result,
as queries, keys and values of GPT-2's attention are."""
