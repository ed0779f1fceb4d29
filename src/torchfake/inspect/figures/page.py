"""Records as one HTML page: the answer and key figures first, then figures and tables.

Input: Summaries, Estimates, Fits, Inspections and plans. Output: the text of an HTML file.
Invariant: the page is self-contained, and readable without its script, which filters the tree and
folds the graph; text is escaped; what is said in the first lines is not said again.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from torchfake.inspect.dataflow.model_graph import DataflowGraph
from torchfake.inspect.figures import drawing
from torchfake.inspect.figures.html import blocks_html, escape
from torchfake.inspect.figures.plan_sections import code_section, plan_sections
from torchfake.inspect.figures.svg import curve_svg, icicle_svg
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit, Fits, verdict_on
from torchfake.inspect.records.record import OnPage, html_fragment, plain_text, shown
from torchfake.inspect.records.units import bytes_text, compared_bytes, count_text, seconds_text
from torchfake.inspect.show import text
from torchfake.inspect.show.headline import headline
from torchfake.inspect.show.verdict import largest_text
from torchfake.inspect.summary import Summary
from torchfake.inspect.timing.hardware import why_untimed

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>{style}</style></head><body>
<header><h1>{title}</h1>
{verdict}
<div class="cards">{cards}</div></header>
<main>
{sections}
</main>
<script>{script}</script></body></html>
"""


def html_page(records: list[Any]) -> str:
    """The HTML page that shows some records."""
    has_step = any(not isinstance(part, Summary) for part in _parts(records))
    said = {"fits", "training"} if has_step else {"fits"}
    sections = "\n".join(
        f"<section><h2>{escape(heading)}</h2>\n{body}</section>"
        for record in records
        for heading, body in _sections(record, said)
    )
    return _PAGE.format(
        title=escape(_title(records)),
        style=_file("page.css"),
        verdict="".join(map(_paragraph, _verdicts(records))),
        cards="".join(_card(name, value) for name, value in _cards(records).items()),
        sections=sections,
        script=_file("page.js"),
    )


def _file(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _parts(records: list[Any]) -> Iterator[Any]:
    """The records, with inspections replaced by their parts, and without graphs."""
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
        if isinstance(part, OnPage):
            return part.title
        estimate = getattr(part, "estimate", part)
        if isinstance(estimate, Estimate):
            return estimate.class_name
    return next((r.class_name for r in records if isinstance(r, DataflowGraph)), "torchfake")


def _verdicts(records: list[Any]) -> Iterator[tuple[str, str]]:
    """The first sentences of the page, each after its class: ``verdict yes``, or ""."""
    for part in _parts(records):
        if isinstance(part, Summary):
            yield "", headline(part)
            continue
        if isinstance(part, OnPage):
            yield f"verdict {part.verdict}", part.sentence
            continue
        line, fit = _verdict_line(part), _fit_of(part)
        if not line or fit is None:
            continue
        fits: list[Fit] = list(part) if isinstance(part, Fits) else [fit]
        best = next(v for v in ("yes", "tight", "no") if v in {fit.verdict for fit in fits})
        yield f"verdict {best}", _verdict(fits)
        counted = line.partition("; ")[2]
        yield "", f"{counted[:1].upper()}{counted[1:]}."


def _verdict_line(part: Any) -> str:
    """The line that says whether a step fits; "" if it is on no GPU."""
    if isinstance(part, (Estimate, Fits)):
        return next((words for _, words in text.verdict_lines(part)), "")
    return plain_text(part).split("\n", 1)[0] if _fit_of(part) else ""


def _verdict(fits: list[Fit]) -> str:
    """The answer as a sentence."""
    if len(fits) > 1:
        names = [f"{f.gpu}{' (tight)' * (f.verdict == 'tight')}" for f in fits if f.fits]
        listed = f": {', '.join(names)}" if names else ""
        return f"Fits on {len(names) or 'none'} of {len(fits)} GPUs{listed}."
    (fit,) = fits
    words = {"yes": "Fits", "tight": "Fits, tightly,", "no": "Does not fit"}[fit.verdict]
    reserved, usable = compared_bytes(fit.peak_reserved_bytes), compared_bytes(fit.usable_bytes)
    spare = f"{compared_bytes(abs(fit.headroom_bytes))} {'to spare' if fit.fits else 'missing'}"
    return f"{words} on {fit.gpu}: {reserved} reserved of {usable}, {spare}."


def _paragraph(sentence: tuple[str, str]) -> str:
    css, words = sentence
    return f'<p class="{css}">{escape(words)}</p>\n' if css else f"<p>{escape(words)}</p>\n"


def _cards(records: list[Any]) -> dict[str, str]:
    """The key figures, as text by name."""
    cards: dict[str, str] = {}
    for part in _parts(records):
        if isinstance(part, Summary):
            size = part.tree.size
            cards["parameters"] = count_text(size.num_parameters)
            if part.active is not None:
                cards["active"] = count_text(part.active.num_parameters)
            cards["weights"] = compared_bytes(size.parameter_bytes)
        cards.update(part.cards if isinstance(part, OnPage) else _cards_of_step(part))
        if isinstance(part, Fits) and len(part) == 1:
            cards[f"max {part[0].vary}"] = largest_text(part[0])
    return {name: value for name, value in cards.items() if value}


def _cards_of_step(part: Any) -> Iterator[tuple[str, str]]:
    """The key figures of a step: of an Estimate, of the one that Fits show, or of a plan."""
    step = getattr(part, "shown", getattr(part, "plan", part))
    estimate = getattr(part, "estimate", step)
    if not isinstance(estimate, Estimate):
        return
    if step.gpu is not None:
        yield "GPU", step.gpu.name.removeprefix("NVIDIA ")
    yield "peak", compared_bytes(step.peak_bytes)
    if (fit := _fit_of(part)) is not None:
        yield "reserved", compared_bytes(fit.peak_reserved_bytes)
    activations = step.peak.by_category.get("activations")
    if activations:
        yield "activations at the peak", bytes_text(activations)
    if step.step_seconds is not None:
        yield "step time", seconds_text(step.step_seconds)
    elif step.schedule is not None:
        yield "step time, at least", seconds_text(step.schedule.seconds)
    elif why := why_untimed(step.gpu):
        yield "step time", why


def _fit_of(part: Any) -> Fit | None:
    """The verdict that a part shows first."""
    if isinstance(part, Fits):
        return part.shown_fit
    found: Fit | None = (
        verdict_on(part) if isinstance(part, Estimate) else getattr(part, "plan", part).fit
    )
    return found


def _card(name: str, value: str) -> str:
    """A number and its name; the same number in GiB is beside the name."""
    value, _, gib = value.partition(" (")
    name += f" ({gib}" * bool(gib)
    return f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>"


def _sections(record: Any, said: set[str]) -> Iterator[tuple[str, str]]:
    """The sections of a record, each a heading and HTML, without rows that are said elsewhere."""
    if isinstance(record, Inspection):
        yield from () if record.memory is None else _sections(record.memory, said)
        yield from _sections(record.summary, said)
        yield from () if record.graph is None else _sections(record.graph, said)
    elif isinstance(record, DataflowGraph):
        yield "Dataflow", html_fragment(record)
    elif isinstance(record, Summary):
        yield "Parameters", icicle_svg(drawing.parameters_icicle(record))
        if record.flops and sum(record.flops_of([""])):
            yield "Operations", icicle_svg(drawing.operations_icicle(record))
        yield "Modules", _rows(record, said)
    elif isinstance(record, Fits):
        yield "Memory, and where it fits", _rows(record, said)
        yield from _memory_sections(record.shown)
    elif isinstance(record, Estimate):
        yield "Memory", _rows(record, said)
        yield from _memory_sections(record)
    elif isinstance(record, OnPage):
        yield from record.sections
        yield "Details", _html_of(record.rows, said)
    else:  # a plan, and the memory of the ranks that hold the most
        yield from plan_sections(record)
        yield "Plan", _rows(record, said)
        yield from _memory_sections(record.estimate)
        yield from code_section(record) if hasattr(record, "code") else ()


def _rows(record: Any, said: set[str]) -> str:
    """The rows of a record without what the page says elsewhere: headline, verdict, code."""
    return _html_of(shown(record), said)


def _html_of(shown_blocks: list[Any], said: set[str]) -> str:
    blocks = (
        block._replace(rows=[r for r in block.rows if r.name not in said], heading="", code="")
        for block in shown_blocks
    )
    return blocks_html(block for block in blocks if block.rows or block.note)


def _memory_sections(estimate: Estimate) -> Iterator[tuple[str, str]]:
    yield "Memory over time", curve_svg(drawing.memory_curve(estimate))
    yield "Memory at the peak", icicle_svg(drawing.peak_icicle(estimate))
