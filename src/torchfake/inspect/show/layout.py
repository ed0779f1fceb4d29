"""Rows as lines of text, within a width.

Input: blocks of rows, and a width. Output: lines, each made of texts and how they are emphasized;
plain text. Invariant: no line is broken inside a word, headers are one line; in a table that is too
wide, units are left out, then columns, one by one from the least needed, which a note names.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from unicodedata import combining, east_asian_width

from torchfake.errors import printable
from torchfake.inspect.records.record import Record, plain_text, shown
from torchfake.inspect.show.rows import SHAPE, VERDICT, Block, Row, emphasized

Parts = list[tuple[str, str]]
"""A line: its texts, each with how it is emphasized."""

_LEAST = 20
"""The fewest characters of a line of wrapped text."""


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
        if block.heading:
            first, *others = _wrapped(printable(block.heading), width)
            yield [(text, style or "strong") for text, style in emphasized(first, VERDICT)]
            yield from ([(text, "strong")] for text in others)
        yield from _Table(block, width).lines() if block.columns else _lines(block, width)
        yield from ([(text, "dim")] for text in _wrapped(printable(block.note), width) if text)
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
        cells = zip(head, widths, strict=False)
        left = "".join(cell + " " * (size - _width(cell) + 2) for cell, size in cells)
        text = printable(row.values[-1]) if row.values else ""
        first, *others = _wrapped(text, width, _width(left))
        yield [(left, "strong"), *emphasized(first, row.emphasis)]
        yield from ([(" " * _width(left) + other, "")] for other in others)


class _Table:
    """A table with columns, of which some go if the width is too small."""

    def __init__(self, block: Block, width: int | None) -> None:
        self.block = block
        self.width = width
        self.is_short = False
        self.shown = block.filled()
        self.under: list[int] = []
        self.left_out: list[str] = []
        plain = [("  " * row.indent, "") for row in block.rows]
        self.guides = plain if width is None else _guides(block.rows)

    def lines(self) -> Iterator[Parts]:
        """The lines: a header, the rows, and what had to be left out."""
        while self.width is not None and self._least_width() > self.width and self._narrow():
            pass
        columns, texts = self.block.columns, {i: self._texts(i) for i in self.shown[1:]}
        sizes = {i: max(map(_width, cells)) for i, cells in texts.items()}
        room = None if self.width is None else self.width - sum(n + 2 for n in sizes.values())
        names = [self._name(number, room) for number in range(len(self.block.rows))]
        own = [_width_of(first) for first, _ in names]
        size = max([len(columns[0].name), *(n for n in own if room is None or n <= room)])

        def beside(first: Parts, line: int) -> Parts:
            parts = [*first, (" " * (size - _width_of(first)), "")]
            for i, cells in texts.items():
                gap = " " * (sizes[i] - _width(cells[line]))
                before, after = ("  ", gap) if columns[i].is_left else ("  " + gap, "")
                emphasis = columns[i].emphasis if line else "strong"
                parts += [(before, ""), *emphasized(cells[line], emphasis), (after, "")]
            return parts

        yield beside([(columns[0].name, "strong")], 0)
        for line, (first, below) in enumerate(names, 1):
            is_too_long = own[line - 1] > size
            yield from [first] * is_too_long
            yield beside([] if is_too_long else first, line)
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
        names = zip(self.guides, self.block.rows, strict=True)
        own = (_width(guide + printable(row.name)) for (guide, _), row in names)
        others = (2 + max(map(_width, self._texts(i))) for i in self.shown[1:])
        return max([len(self.block.columns[0].name), *own]) + sum(others)

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
        name = [(guide, "dim"), (printable(row.name), "")]
        texts = []
        for i in self.under:
            column = self.block.columns[i]
            found = column.texts_of(row.values[i - 1], is_short=self.is_short)
            begins = [column.under or "", *[""] * len(found)]
            texts += [printable(begin + text) for begin, text in zip(begins, found, strict=False)]
        if not texts or self.width is None or room is None:
            return name, []
        beside = ", ".join(texts)
        if _width_of(name) + 2 + _width(beside) <= room:
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
    lines: list[str] = []
    for text in texts:
        if lines and indent + _width(lines[-1]) + _width(text) + 3 <= width:
            lines[-1] += f", {text}"
        else:
            lines += [text]
    ends = [","] * (len(lines) - 1) + [""]
    return [
        part
        for line, end in zip(lines, ends, strict=True)
        for part in _wrapped(line + end, width, indent)
    ]


def _wrapped(text: str, width: int | None, indent: int = 0) -> list[str]:
    """A text in lines that fit beside an indentation; those of a command end with a backslash."""
    if width is None or indent + _width(text) <= width:
        return [text]
    is_command = text.startswith("torchfake ")
    room = max(width - indent - 2 * is_command, _LEAST)
    parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return [*(part + " \\" * is_command for part in parts[:-1]), *parts[-1:]]


def _width(text: str) -> int:
    """The columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def _width_of(parts: Parts) -> int:
    return sum(_width(text) for text, _ in parts)
