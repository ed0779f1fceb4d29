"""Records as one HTML page: the answer and key figures first, then figures and tables.

Input: records. Output: the text of an HTML file. Invariant: the page is self-contained, and
readable without its script, which filters the tree and folds the graph; text is escaped; what is
said in the first lines is not said again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import takewhile
from typing import Any

from torchfake.inspect.dataflow.model_graph import DataflowGraph
from torchfake.inspect.figures import drawing
from torchfake.inspect.figures.html import blocks_html, breakable, escape
from torchfake.inspect.figures.svg import curve_svg, icicle_svg
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit, Fits, verdict_on
from torchfake.inspect.records.record import OnPage, html_fragment, on_page, shown
from torchfake.inspect.records.units import compared_bytes, count_text, seconds_text
from torchfake.inspect.show.headline import headline, training_bytes, training_lines
from torchfake.inspect.show.rows import VERDICT, VERDICTS, Block, Row
from torchfake.inspect.show.step_time import room_text
from torchfake.inspect.show.verdict import largest_text, which_shown
from torchfake.inspect.summary import Summary
from torchfake.inspect.timing.hardware import why_untimed

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>{style}</style></head><body>
<header><h1>{title}</h1>{target}
{verdict}
<div class="cards">{cards}</div></header>
<main>
{sections}
</main>
<script>{script}</script></body></html>
"""


_IN_WORDS = {
    **{"no, on none": "Fits on none", "yes, on": "Fits on", "no way": "No way"},
    **{"yes": "Fits", "tight": "May fit, tightly", "no": "Does not fit"},
}
"""How a sentence begins, by how the row does."""

_REMEDIES = {
    **{"try": "Try ", "else": "", "next": "Next: "},
    **{"cheaper": "Cheaper with ", "fewer GPUs": "Fewer GPUs with "},
}
"""Rows of changes, with which it fits or not even with those, or for less, and how their sentences
begin; more rows follow without a name. Commands to run next are code."""

_OF_STEPS, _HELD = ("training", "device"), "before activations: AdamW, mixed precision"
"""The names of the rows and of the card that are not shown beside a step, which says more."""


def html_page(records: Sequence[Any]) -> str:
    """The HTML page that shows some records.

    Raises:
        InputsError: if pages do not show one of them.
    """
    pages = [page for record in records for page in on_page(record)]
    has_step = any(map(_is_of_step, pages))
    remedies = [[*_remedies(page)] for page in pages]
    said = [page.answer for page in pages] + [row for rows in remedies for row in rows]
    cards = {name: value for page in pages for name, value in page.cards.items() if value}
    if has_step:
        cards.pop(_HELD, None)
    return _PAGE.format(
        title=escape(pages[0].title),
        target="".join(f'\n<p class="dim">{breakable(p.target)}</p>' for p in pages if p.target),
        style=_file("page.css"),
        verdict="".join(
            text
            for page, rows in zip(pages, remedies, strict=True)
            for text in (*_sentences(page, has_step), *_changes(rows))
        ),
        cards="".join(_card(name, value) for name, value in cards.items()),
        sections="\n".join(
            f"<section><h2>{escape(heading)}</h2>\n{_body(found, said, has_step)}</section>"
            for page in sorted(pages, key=lambda page: not _is_of_step(page))
            for heading, found in page.sections
        ),
        script=_file("page.js"),
    )


def _is_of_step(page: OnPage) -> bool:
    """Whether the answer is that of a step, whose sections come first."""
    return page.answer is not None and bool(page.answer.name)


def _file(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _sentences(page: OnPage, has_step: bool = False) -> Iterator[str]:
    """The answer as sentences: whether it fits, then what was counted. Beside a step the line about
    the model is left out, whose GPU for the weights would stand above the one for the step.
    """
    row: Row | None = page.answer
    if row is None or (has_step and not row.name):
        return
    answer, _, counted = row.values[0].partition("; " if row.name else "\n")
    verdict = page.verdict
    if row.emphasis == VERDICT:
        start, words = next(each for each in _IN_WORDS.items() if answer.startswith(each[0]))
        verdict = verdict or VERDICTS[start.partition(",")[0]]
        answer = f"{words}{answer[len(start) :]}."
    elif row.name:
        answer = f"{row.name.capitalize()}: {answer}."
    yield f'<p class="verdict {verdict}">{breakable(answer)}</p>\n' if verdict else _p(answer)
    if counted:
        yield _p(f"{counted[0].upper()}{counted[1:]}.")


def _changes(remedies: Sequence[Row]) -> Iterator[str]:
    """Rows of changes as sentences, or as commands."""
    for remedy in remedies:
        begin, change = _REMEDIES[remedies[0].name], remedy.values[0]
        if remedies[0].name == "next":
            yield f"<p>{begin}<code>{escape(change)}</code></p>\n"
        else:
            said = f"{begin}{change}"
            yield _p(f"{said[0].upper()}{said[1:]}.")


def _remedies(page: OnPage) -> Iterator[Row]:
    """The rows of changes, which stand under the answer about a step."""
    if not _is_of_step(page):
        return
    blocks = (block for _, found in page.sections if not isinstance(found, str) for block in found)
    rows = [row for block in blocks for row in block.rows if not block.columns]
    at = next((i for i, row in enumerate(rows) if row.name in _REMEDIES), len(rows))
    yield from rows[at : at + 1]
    yield from takewhile(lambda row: not row.name, rows[at + 1 :])


def _p(text: str) -> str:
    return f"<p>{breakable(text)}</p>\n"


def _card(name: str, value: str) -> str:
    """A number and its name; the same number in GiB is beside the name."""
    value, _, gib = value.partition(" (")
    name += f" ({gib}" * bool(gib)
    return f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>"


def _body(found: str | Iterable[Block], said: Sequence[Any], has_step: bool) -> str:
    """A section's HTML; of rows those that are not said elsewhere, without headline and code."""
    if isinstance(found, str):
        return found
    blocks = (
        block._replace(
            rows=_without_orphans(
                row
                for row in block.rows
                if row not in said and not (has_step and row.name in _OF_STEPS)
            ),
            heading="",
            code="",
        )
        for block in found
    )
    return blocks_html(block for block in blocks if block.rows or block.note)


def _without_orphans(rows: Iterable[Row]) -> list[Row]:
    """Rows, of which the first ones are indented under no other row."""
    found = list(rows)
    least = found[0].indent if found else 0
    first = [*takewhile(lambda row: row.indent >= least, found)] if least else []
    return [row._replace(indent=row.indent - least) for row in first] + found[len(first) :]


@on_page.register
def _(found: Summary) -> list[OnPage]:
    size = found.tree.size
    cards = {"parameters": count_text(size.num_parameters)}
    if found.active is not None:
        cards["active"] = count_text(found.active.num_parameters)
    cards["weights"] = compared_bytes(size.parameter_bytes)
    if training_lines(found):
        cards[_HELD] = compared_bytes(training_bytes(found))
    sections: list[tuple[str, Any]] = [("Parameters", icicle_svg(drawing.parameters_icicle(found)))]
    if found.flops and sum(found.flops_of([""])):
        of = ", forward and backward" * bool(found.flops_of([""]).backward)
        sections.append((f"Operations{of}", icicle_svg(drawing.operations_icicle(found))))
    sections.append(("Modules", shown(found)))
    return [OnPage(found.tree.class_name, Row("", (headline(found),)), cards, sections)]


@on_page.register
def _(found: Inspection) -> list[OnPage]:
    parts = (found.summary, found.memory, found.graph)
    first, *others = (page for part in parts if part is not None for page in on_page(part))
    return [first._replace(target=found.target), *others]


@on_page.register
def _(found: DataflowGraph) -> list[OnPage]:
    return [OnPage(found.class_name, None, {}, [("Dataflow", html_fragment(found))])]


@on_page.register
def _(found: Estimate) -> list[OnPage]:
    blocks, fit = shown(found), verdict_on(found)
    cards, sections = key_figures(found, fit), [("Memory", blocks), *memory_sections(found, fit)]
    return [OnPage(found.class_name, answer_in(blocks), cards, sections)]


@on_page.register
def _(found: Fits) -> list[OnPage]:
    blocks, cards = shown(found), key_figures(found.shown, found.shown_fit)
    if len(found) == 1:
        largest = "serves at most" if found[0].serve is not None else f"max {found[0].vary}"
        cards[largest] = largest_text(found[0])
    elif "GPU" in cards:
        which = which_shown(found)
        if found.shown_fit.verdict == "tight":
            which += f", tight: {compared_bytes(found.shown_fit.headroom_bytes)} to spare"
        cards = {which: cards.pop("GPU"), **cards}
    of_step, *tables = blocks
    in_order = [*tables, of_step] if len(found) > 1 else blocks
    sections = [
        ("Memory, and where it fits", in_order),
        *memory_sections(found.shown, found.shown_fit),
    ]
    return [OnPage(found.shown.class_name, answer_in(blocks), cards, sections)]


def answer_in(blocks: Sequence[Block]) -> Row | None:
    """The first row, if it is a verdict."""
    first: Row = blocks[0].rows[0]
    return first if first.emphasis == VERDICT else None


def key_figures(step: Any, fit: Fit | None) -> dict[str, str]:
    """The key figures of an Estimate, or of a Plan."""
    cards = {} if step.gpu is None else {"GPU": step.gpu.name.removeprefix("NVIDIA ")}
    cards[f"peak of {step.mode}"] = compared_bytes(step.peak_bytes)
    cards["reserved"] = compared_bytes(fit.peak_reserved_bytes) if fit else ""
    room = room_text(fit)
    if step.step_seconds is not None:
        cards[f"step time{room}"] = seconds_text(step.step_seconds)
    elif step.schedule is not None:
        cards[f"step time, at least{room}"] = seconds_text(step.schedule.seconds)
    else:
        cards["step time"] = why_untimed(step.gpu)
    return cards


def memory_sections(estimate: Estimate, fit: Fit | None) -> list[tuple[str, Any]]:
    """The memory of a step over time, and of modules at its peak."""
    kept = 0 if fit is None else fit.reserved_bytes  # without a GPU nothing is usable of one
    return [
        ("Memory over time", curve_svg(drawing.memory_curve(estimate, kept))),
        ("Memory at the peak", icicle_svg(drawing.peak_icicle(estimate))),
    ]
