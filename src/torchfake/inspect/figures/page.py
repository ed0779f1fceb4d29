"""Records as one HTML page: the answer and its figures first, then what they come from.

Input: Summaries, Estimates, Fits, Inspections and plans. Output: the text of an HTML file.
Invariant: the page has all that it needs, and reads without its script, which filters and unfolds
the tree; text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchfake.inspect.dataflow.model_graph import DataflowGraph
from torchfake.inspect.figures import drawing
from torchfake.inspect.figures.html import escape
from torchfake.inspect.figures.page_style import SCRIPT, STYLE
from torchfake.inspect.figures.svg import curve_svg, icicle_svg
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit, Fits, verdict_on
from torchfake.inspect.records.record import html_fragment, plain_text
from torchfake.inspect.records.units import bytes_text, compared_bytes, count_text, seconds_text
from torchfake.inspect.show import text
from torchfake.inspect.show.headline import headline
from torchfake.inspect.summary import Summary

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>{style}</style></head><body>
<header><h1>{title}</h1>
{verdict}
<div class="cards">{cards}</div></header>
{sections}
<script>{script}</script></body></html>
"""


def html_page(records: list[Any]) -> str:
    """The page of some records."""
    sections = "\n".join(
        f"<section><h2>{escape(heading)}</h2>\n{body}</section>"
        for record in records
        for heading, body in _sections(record)
    )
    return _PAGE.format(
        title=escape(_title(records)),
        style=STYLE,
        verdict="".join(map(_paragraph, _verdicts(records))),
        cards="".join(_card(name, value) for name, value in _cards(records).items()),
        sections=sections,
        script=SCRIPT,
    )


def _parts(records: list[Any]) -> Iterator[Any]:
    """The records, and those that an inspection consists of."""
    for record in records:
        if isinstance(record, Inspection):
            yield record.summary
            yield from () if record.memory is None else (record.memory,)
        elif isinstance(record, DataflowGraph):
            continue
        else:
            yield record


def _title(records: list[Any]) -> str:
    for part in _parts(records):
        if isinstance(part, Summary):
            return part.tree.class_name
        estimate = getattr(part, "estimate", part)
        if isinstance(estimate, Estimate):
            return estimate.class_name
    return next((r.class_name for r in records if isinstance(r, DataflowGraph)), "torchfake")


def _verdicts(records: list[Any]) -> Iterator[tuple[str, str]]:
    """The sentences that answer, each with "yes", "tight", "no" or "" for what is no answer."""
    for part in _parts(records):
        if isinstance(part, Summary):
            yield "", headline(part)
        elif isinstance(part, (Estimate, Fits)):
            for _, sentence in text.verdict_lines(part)[:1]:
                yield _verdict_of(part), f"Does it fit: {sentence}"
        elif (found := getattr(part, "fits", None)) is not None:  # a plan
            first = plain_text(part).split("\n", 1)[0].split(None, 1)[-1]
            yield "yes" if found else "no", f"Does it fit: {first}"


def _verdict_of(found: Estimate | Fits) -> str:
    fits = list(found) if isinstance(found, Fits) else [verdict_on(found)]
    verdicts = {fit.verdict for fit in fits if isinstance(fit, Fit)}
    return next((name for name in ("yes", "tight", "no") if name in verdicts), "")


def _paragraph(sentence: tuple[str, str]) -> str:
    verdict, words = sentence
    return f'<p class="verdict {verdict}">{escape(words)}</p>\n'


def _cards(records: list[Any]) -> dict[str, str]:
    """The figures that people look for first, by name."""
    cards: dict[str, str] = {}
    for part in _parts(records):
        if isinstance(part, Summary):
            size = part.tree.size
            cards["parameters"] = count_text(size.num_parameters)
            if part.active is not None:
                cards["active"] = count_text(part.active.num_parameters)
            cards["weights"] = compared_bytes(size.parameter_bytes)
        estimate = getattr(part, "shown", getattr(part, "estimate", part))
        if isinstance(estimate, Estimate):
            cards.update(_cards_of_step(estimate))
        if isinstance(part, Fits) and len(part) == 1:
            cards[f"max {part[0].vary}"] = text.largest_text(part[0])
    return {name: value for name, value in cards.items() if value}


def _cards_of_step(estimate: Estimate) -> Iterator[tuple[str, str]]:
    if estimate.gpu is not None:
        yield "GPU", estimate.gpu.name
    yield "peak", compared_bytes(estimate.peak_bytes)
    if estimate.peak_reserved_bytes is not None:
        yield "reserved", compared_bytes(estimate.peak_reserved_bytes)
    activations = estimate.peak.by_category.get("activations")
    if activations:
        yield "activations at the peak", bytes_text(activations)
    if estimate.step_seconds is not None:
        yield "step time", seconds_text(estimate.step_seconds)


def _card(name: str, value: str) -> str:
    return f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>"


def _sections(record: Any) -> Iterator[tuple[str, str]]:
    """Headings, and the HTML below each."""
    if isinstance(record, Inspection):
        yield from () if record.memory is None else _sections(record.memory)
        yield from _sections(record.summary)
        yield from () if record.graph is None else _sections(record.graph)
    elif isinstance(record, DataflowGraph):
        yield "Dataflow", html_fragment(record)
    elif isinstance(record, Summary):
        yield "Parameters", icicle_svg(drawing.parameters_icicle(record))
        if record.flops and sum(record.flops_of([""])):
            yield "Operations", icicle_svg(drawing.operations_icicle(record))
        yield "Modules", html_fragment(record)
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
    yield "Memory over time", curve_svg(drawing.memory_curve(estimate))
    yield "Memory at the peak", icicle_svg(drawing.peak_icicle(estimate))
