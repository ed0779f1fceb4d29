"""Records as one HTML page with figures: the file that ``report`` writes.

Input: Summaries, Estimates, Fits and Inspections. Output: the text of an HTML file. Invariant: the
page contains all that it needs, plotly's script too; text is escaped. Called by: ``show/report``,
which imports this file when it is first called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchfake.errors import MissingExtraError
from torchfake.inspect.base_record import html_fragment
from torchfake.inspect.describe.units import bytes_text
from torchfake.inspect.estimates import Estimate
from torchfake.inspect.fit import Fits
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.show import figures, text
from torchfake.inspect.show.html import escape
from torchfake.inspect.summary import Summary

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1200px;
padding: 0 1em; color: #222; background: #fff}} h1 {{font-size: 1.6em}}
h2 {{font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ddd}}
.note {{color: #666}}</style>
<script>{script}</script></head><body>
<h1>{title}</h1><p class="note">{headline}</p>
{sections}
</body></html>
"""


def html_page(records: list[Any]) -> str:
    """The page of some records.

    Raises:
        MissingExtraError: if plotly is not installed.
    """
    script = _plotly_script()
    title, headline = _headline(records)
    sections = "\n".join(
        f"<h2>{escape(heading)}</h2>\n{body}"
        for record in records
        for heading, body in _sections(record)
    )
    return _PAGE.format(
        title=escape(title), headline=escape(headline), script=script, sections=sections
    )


def _headline(records: list[Any]) -> tuple[str, str]:
    """The page's title, and the line below it."""
    title, parts = "", []
    for record in records:
        if isinstance(record, Inspection):
            record = record.summary
        if isinstance(record, Summary):
            title = title or record.tree.class_name
            parts.append(dict(text.totals(record))["parameters"])
        estimated = getattr(record, "estimate", record)
        if isinstance(estimated, Estimate):
            title = title or estimated.class_name
            parts.append(f"{estimated.mode}: {bytes_text(estimated.peak_bytes)} at the peak")
    return title, "; ".join(parts)


def _sections(record: Any) -> Iterator[tuple[str, str]]:
    """Headings, and the HTML below each."""
    if isinstance(record, Inspection):
        yield from _sections(record.summary)
        yield from () if record.memory is None else _sections(record.memory)
    elif isinstance(record, Summary):
        yield "Modules", html_fragment(record)
        yield "Parameters", _figure_html(record.plot())
        if record.flops and sum(record.flops_of([""])):
            yield "Operations", _figure_html(figures.flops_figure(record))
    elif isinstance(record, Fits):
        yield "Memory, and where it fits", html_fragment(record)
        yield from _memory_sections(record.shown)
    elif isinstance(record, Estimate):
        yield "Memory", html_fragment(record)
        yield from _memory_sections(record)
    else:  # a plan: its text, and the memory of the ranks that have most
        yield type(record).__name__, html_fragment(record)
        yield from _memory_sections(record.estimate)


def _memory_sections(estimate: Estimate) -> Iterator[tuple[str, str]]:
    yield "Memory over time", _figure_html(estimate.plot())
    yield "Memory at the peak", _figure_html(figures.peak_figure(estimate))


def _figure_html(figure: Any) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False))


def _plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError('a report needs plotly: pip install "torchfake[viz]"') from error
    return str(get_plotlyjs())
