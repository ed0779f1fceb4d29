"""A record as rows, from which text, terminals, notebooks and pages are drawn.

Input: what a record says. Output: blocks of rows, plain data. Invariant: rows know neither a width
nor colours nor markup. A new record is shown everywhere once it is written as rows:

    @shown.register
    def _(found: Speed, *, depth: int | None = None) -> list[Block]:
        columns = (
            Column("GPU", "gpu"),
            Column("time", "seconds", seconds_text),
            Column("fits", "verdict", emphasis=VERDICT),
        )
        return [as_lines([("fits", found.answer)]), table(found.by_gpu, columns)]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

VERDICT = "verdict"
"""The emphasis of a text that begins with a verdict, which is coloured."""

SHAPE = "shape"
"""The emphasis of shapes and classes, beside names and numbers."""

VERDICTS = {
    **{"yes": "yes", "tight": "tight", "no": "no", "perhaps": "tight"},
    **{"identical": "yes", "different": "tight"},
}
"""The words that are verdicts, and the one of yes, tight and no whose colour each has."""


class Bar(NamedTuple):
    """A bar beside a number."""

    kind: str  # the category, which has a colour
    share: float  # of the whole


class Row(NamedTuple):
    """A name, and a text or a value for each further column."""

    name: str
    values: tuple[Any, ...] = ()  # None and "": nothing
    indent: int = 0  # levels; in a table with columns, those of a tree
    emphasis: str = ""
    bar: Bar | None = None


class Column(NamedTuple):
    """A column of values; the first one is that of names."""

    name: str
    of: str | Callable[[Any], Any] = (
        ""  # its value of what a row is about: an attribute, a function
    )
    unit: Callable[[Any], str] | None = None  # makes text of a value; None: values are texts
    short: Callable[[Any], str] | None = None  # as `unit`, where there is little room
    need: int = 0  # where there is little room, the highest goes first; 0: it stays
    under: str | None = None  # how its texts begin under the name, when it goes; None: left out
    emphasis: str = ""  # VERDICT, SHAPE

    @property
    def is_left(self) -> bool:
        """Whether it is aligned on the left, as texts are."""
        return self.unit is None

    def texts_of(self, value: Any, *, is_short: bool = False) -> tuple[str, ...]:
        """A value as text; of several, each."""
        if value is None or value == "":
            return ()
        if isinstance(value, tuple):
            return value
        unit = (is_short and self.short) or self.unit or str
        return (unit(value),)

    def text_of(self, value: Any, *, is_short: bool = False) -> str:
        """A value as one text; "" if there is none."""
        return ", ".join(self.texts_of(value, is_short=is_short))


class Block(NamedTuple):
    """Rows under a heading; between blocks is an empty line."""

    rows: Sequence[Row] = ()
    columns: Sequence[Column] = ()  # () where rows are names and texts
    heading: str = ""
    note: str = ""
    code: str = ""  # whose lines stay whole

    def filled(self) -> list[int]:
        """The indices of the columns that are not empty; that of names is the first."""
        others = range(1, len(self.columns))
        texts = {i: self.columns[i].texts_of for i in others}
        return [0, *(i for i in others if any(texts[i](row.values[i - 1]) for row in self.rows))]


def table(items: Iterable[Any], columns: Sequence[Column], note: str = "") -> Block:
    """A table with a row for each item, of its values; a tree if items have a level."""
    get = [attrgetter(each.of) if isinstance(each.of, str) else each.of for each in columns]
    rows = [
        Row(get[0](item), tuple(of(item) for of in get[1:]), getattr(item, "level", 0))
        for item in items
    ]
    return Block(rows, columns, note=note)


Line = tuple[str, Any]
"""A name, which two spaces indent, and what is said: a text, several, or nothing."""


def as_lines(found: Iterable[Line], bars: Mapping[str, float] | None = None) -> Block:
    """A block of lines; the one that is named "fits" begins with its verdict.

    Args:
        found: the lines. Of several texts each has a row, the first one the name; a line that says
            nothing has none.
        bars: shares of the whole, by category: they stand beside indented lines of that name.
    """
    rows = []
    for line, said in found:
        name = line.lstrip()
        indent = (len(line) - len(name)) // 2
        bar = Bar(name, bars[name]) if bars and indent and name in bars else None
        texts = [said] if isinstance(said, str) else said or ()
        for i, text in enumerate(filter(None, map(str, texts))):
            rows.append(Row(name * (not i), (text,), indent, VERDICT * (line == "fits"), bar))
    return Block(rows)


def emphasized(text: str, emphasis: str) -> list[tuple[str, str]]:
    """The parts of a text, each with how it is emphasized: the verdict that it begins with."""
    if emphasis != VERDICT:
        return [(text, emphasis)]
    found = re.match(r"\w+", text)
    word = found[0] if found else ""
    return [(word, VERDICTS.get(word, "")), (text[len(word) :], "")]
