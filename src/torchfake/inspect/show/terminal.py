"""Records for a terminal: lines with tree guides and colours, fitted to its width.

Input: a record and a width. Output: rich texts, a line each. Invariant: the texts are those of
``show/layout``; rich decides which colours the terminal has.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from torchfake.inspect.records.record import Record, renderables, shown
from torchfake.inspect.show.layout import laid_out

_STYLES = {
    **{"strong": "bold", "dim": "dim", "shape": "cyan"},
    **{"yes": "bold green", "tight": "bold yellow", "no": "bold red"},
}


@renderables.register
def _(found: Record, width: int, *, depth: int | None = None) -> Iterator[Text]:
    for line in laid_out(shown(found, depth=depth), width):
        parts = ((text, _STYLES.get(emphasis, "")) for text, emphasis in line)
        text = Text.assemble(*parts, no_wrap=True, overflow="ignore")
        text.rstrip()
        yield text
