"""Lines of names and texts, and tables, as plain text within a width.

Input: lines, each a name and a text; rows of cells. Output: aligned text. Invariant: within the
width of a terminal, texts are wrapped under themselves, a command can be pasted, and a table that
is too wide is several tables with the same first column.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from torchfake.errors import printable
from torchfake.inspect.records.units import display

_LEAST = 20
"""The fewest characters of a line of wrapped text."""


def plain_lines(lines: list[tuple[str, str]]) -> str:
    """Format lines, each a name and a text, with the texts aligned."""
    return "\n".join(f"{name}{text}".rstrip() for name, text in aligned_lines(lines))


def aligned_lines(lines: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Lines with their names padded, and their texts wrapped under themselves."""
    lines = [(printable(name), printable(text)) for name, text in lines]
    width = max((len(name) for name, _ in lines), default=0)
    for name, text in lines:
        yield f"{name:{width}}  ", _wrapped(text, width + 2)


def _wrapped(text: str, indent: int) -> str:
    """A text in lines that fit beside an indentation; those of a command end with a backslash."""
    if display.width is None or indent + len(text) <= display.width:
        return text
    is_command = text.startswith("torchfake ")
    room = max(display.width - indent - 2 * is_command, _LEAST)
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return (" \\" * is_command + "\n" + " " * indent).join(parts)


def padded(table: Sequence[tuple[str, ...]], left: tuple[str, ...]) -> Iterator[str]:
    """Format a table without its empty columns; columns named in `left` are left-aligned."""
    table = [tuple(map(printable, line)) for line in table]
    columns = [i for i in range(len(table[0])) if i == 0 or any(line[i] for line in table[1:])]
    widths = {i: max(len(line[i]) for line in table) for i in columns}
    for number, part in enumerate(_parts(columns, widths)):
        yield from [""] * (number > 0)
        for line in table:
            cells = [
                line[i].ljust(widths[i]) if table[0][i] in left else line[i].rjust(widths[i])
                for i in part
            ]
            yield "  ".join(cells).rstrip()


def _parts(columns: list[int], widths: dict[int, int]) -> Iterator[list[int]]:
    """The columns of each part of a table: as many as fit, the first one in each part."""
    first, *others = columns
    part, taken = [first], widths[first]
    for i in others:
        needed = 2 + widths[i]
        if display.width is not None and len(part) > 1 and taken + needed > display.width:
            yield part
            part, taken = [first], widths[first]
        part.append(i)
        taken += needed
    yield part
