"""Rows as lines of text, within a width.

Input: blocks of rows, and a width. Output: lines, each made of texts and how they are emphasized;
plain text. Invariant: no line is broken inside a word, headers are one line; in a table that is too
wide, units are left out, then columns, one by one from the least needed, which a note names.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from torchfake.errors import printable
from torchfake.inspect.records.record import Record, plain_text, shown
from torchfake.inspect.show.rows import SHAPE, VERDICT, Block, Row, emphasized

Parts = list[tuple[str, str]]
"""A line: its texts, each with how it is emphasized."""

_LEAST = 20
"""The fewest characters of a line of wrapped text."""

_KEPT = "\xa0"
"""A space at which no line is broken."""

_AFTER_A_NUMBER = re.compile(r"(?<=\d) (?=[A-Za-z%])")
"""The space before what a number counts, such as its unit."""


@plain_text.register
def _(found: Record, *, depth: int | None = None) -> str:
    drawn = laid_out(shown(found, depth=depth))
    return "\n".join("".join(text for text, _ in line).rstrip() for line in drawn)


def laid_out(blocks: Iterable[Block], width: int | None = None) -> Iterator[Parts]:
    """The lines of some blocks.

    Args:
        blocks: the blocks.
        width: the columns of a terminal, in which trees have lines from parent to child; None:
            plain text, whose lines are as long as they are.
    """
    for number, block in enumerate(blocks):
        yield from [[]] * (number > 0)
        heading = _wrapped(block.heading, width) if block.heading else []
        for text in heading:
            parts = emphasized(text, VERDICT if text is heading[0] else "")
            yield [(part, style or "strong") for part, style in parts]
        yield from _Table(block, width).lines() if block.columns else _lines(block, width)
        yield from ([(text, "dim")] for text in _wrapped(block.note, width) if text)
        if block.code:
            yield from ([(text, "")] for text in printable(block.code, keep="\n").split("\n"))


def _lines(block: Block, width: int | None) -> Iterator[Parts]:
    """Names and texts in columns, the last text wrapped under itself."""
    heads = [
        ["  " * row.indent + printable(row.name), *map(printable, row.values[:-1])]
        for row in block.rows
    ]
    widths = [max(map(_width, cells)) for cells in zip_longest(*heads, fillvalue="")]
    for row, head in zip(block.rows, heads, strict=True):
        left = "".join(_padded(*each) + "  " for each in zip(head, widths, strict=False))
        first, *others = _wrapped(row.values[-1] if row.values else "", width, _width(left))
        yield [(left, "strong"), *emphasized(first, row.emphasis)]
        yield from ([(" " * _width(left) + other, "")] for other in others)


class Narrowed(NamedTuple):
    """What is shown of a table where there is little room."""

    is_short: bool  # whether units are left out
    shown: list[int]  # columns, that of names first
    under: list[int]  # columns whose texts stand under the name
    left_out: list[str]  # the names of the columns that are not shown


def narrowed(block: Block, width: int) -> Narrowed:
    """What is shown of a table in a line of so many characters."""
    found = _Table(block, width)
    return Narrowed(found.is_short, found.shown, found.under, found.left_out)


class _Table:
    """A table with columns, of which some go if the width is too small."""

    def __init__(self, block: Block, width: int | None) -> None:
        self.block, self.width = block, width
        self.is_short, self.shown = False, block.filled()
        self.under: list[int] = []
        self.left_out: list[str] = []
        plain = [("  " * row.indent, "") for row in block.rows]
        self.guides = plain if width is None else _guides(block.rows)
        self.names = [printable(row.name) for row in block.rows]
        self.own = [_width(g + name) for (g, _), name in zip(self.guides, self.names, strict=True)]
        while width is not None and self._least_width() > width and self._narrow():
            pass

    def lines(self) -> Iterator[Parts]:
        """The lines: a header, the rows, and what had to be left out."""
        columns, texts = self.block.columns, {i: self._texts(i) for i in self.shown[1:]}
        sizes = {i: max(map(_width, cells)) for i, cells in texts.items()}
        room = None if self.width is None else self.width - sum(n + 2 for n in sizes.values())
        names = [self._name(number, room) for number in range(len(self.names))]
        own = [_width("".join(text for text, _ in first)) for first, _ in names]
        size = max([len(columns[0].name), *(n for n in own if room is None or n <= room)])

        def beside(first: Parts, taken: int, line: int) -> Parts:
            parts = [*first, (" " * (size - taken), "")]
            for i, cells in texts.items():
                gap = " " * (sizes[i] - _width(cells[line]))
                before, after = ("  ", gap) if columns[i].is_left else ("  " + gap, "")
                emphasis = columns[i].emphasis if line else "strong"
                parts += [(before, ""), *emphasized(cells[line], emphasis), (after, "")]
            return parts

        yield beside([(columns[0].name, "strong")], len(columns[0].name), 0)
        for line, (first, below) in enumerate(names, 1):
            if own[line - 1] > size:
                yield from (first, beside([], 0, line))
            else:
                yield beside(first, own[line - 1], line)
            yield from below
        if self.left_out:
            note = f"left out at {self.width} columns: {', '.join(self.left_out)}"
            yield from ([(text, "dim")] for text in _wrapped(note, self.width))

    def _texts(self, i: int) -> list[str]:
        """The cells of a column, its header first."""
        column = self.block.columns[i]
        values = (row.values[i - 1] for row in self.block.rows)
        cells = (column.text_of(value, is_short=self.is_short) for value in values)
        return [column.name, *map(printable, cells)]

    def _least_width(self) -> int:
        """The width without what is beside names."""
        others = (2 + max(map(_width, self._texts(i))) for i in self.shown[1:])
        return max([len(self.block.columns[0].name), *self.own]) + sum(others)

    def _narrow(self) -> bool:
        """Leave out units, or else the column that is needed least; false if nothing may go."""
        columns = self.block.columns
        if not self.is_short and any(column.short for column in columns):
            self.is_short = True
            return True
        least = max(self.shown, key=lambda i: columns[i].need)
        if not columns[least].need:
            return False
        self.shown.remove(least)
        if columns[least].under is None:
            self.left_out.insert(0, columns[least].name)
        else:
            self.under = sorted((*self.under, least))
        return True

    def _name(self, number: int, room: int | None) -> tuple[Parts, list[Parts]]:
        """A name with what is beside it, if there is room, and the lines under it."""
        row, (guide, guide_under) = self.block.rows[number], self.guides[number]
        name, texts = [(guide, "dim"), (self.names[number], "")], []
        for column, value in ((self.block.columns[i], row.values[i - 1]) for i in self.under):
            found = [printable(text) for text in column.texts_of(value, is_short=self.is_short)]
            texts += [f"{column.under}{text}" for text in found[:1]] + found[1:]
        if not texts or self.width is None or room is None:
            return name, []
        beside = ", ".join(texts)
        if self.own[number] + 2 + _width(beside) <= room:
            return [*name, ("  ", ""), (beside, SHAPE)], []
        below = _packed(texts, self.width, _width(guide_under))
        return name, [[(guide_under, "dim"), (line, SHAPE)] for line in below]


def _guides(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What stands before the name of each row of a tree, and before the lines under it."""
    follows: list[bool] = []  # for each level, whether a sibling of the row or its parents follows
    found = []
    for row in reversed(rows):
        del follows[row.indent + 1 :]
        follows += [False] * (row.indent + 1 - len(follows))
        lines = ["│  " if each else "   " for each in follows[1:]]
        ends = ["├─ " if each else "└─ " for each in follows[1:]]
        found.append(("".join([*lines[:-1], *ends[-1:]]), "".join(lines) + "   "))
        follows[row.indent] = True
    return found[::-1]


def _packed(texts: Sequence[str], width: int, indent: int) -> list[str]:
    """Texts in a list, as many on a line as fit beside an indentation."""
    whole = ", ".join(text.replace(" ", _KEPT) for text in texts)
    lines = _broken(whole, width - indent)
    return [part for line in lines for part in _wrapped(line, width, indent)]


def _wrapped(text: str, width: int | None, indent: int = 0) -> list[str]:
    """A text in lines that fit beside an indentation; those of a command end with a backslash."""
    text = printable(text)
    if width is None or indent + _width(text) <= width:
        return [text]
    is_command = text.startswith("torchfake ")
    *parts, last = _broken(text, width - indent - 2 * is_command)
    return [*(part + " \\" * is_command for part in parts), last]


def _broken(text: str, room: int) -> list[str]:
    text = _AFTER_A_NUMBER.sub(_KEPT, text)
    lines = textwrap.wrap(text, max(room, _LEAST), break_long_words=False, break_on_hyphens=False)
    return [line.replace(_KEPT, " ") for line in lines] or [""]


def _padded(text: str, size: int) -> str:
    return text + " " * (size - _width(text))


def _width(text: str) -> int:
    """The columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)
