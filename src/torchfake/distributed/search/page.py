"""A search as a page: the answer, the layouts, and the ranks, step and code of the best of them.

Input: a Search. Output: an OnPage. Invariant: the table is that of the text.
"""

from __future__ import annotations

from torchfake.distributed.search.search import Search
from torchfake.distributed.target_plans.target_plan import TargetPlan
from torchfake.inspect.figures.html import blocks_html
from torchfake.inspect.figures.plan_sections import code_section, plan_sections
from torchfake.inspect.records.record import OnPage, on_page, shown
from torchfake.inspect.records.units import compared_bytes, seconds_text


@on_page.register
def _(found: Search) -> OnPage:
    answers, layouts, *_ = shown(found)
    first, *rest = answers.rows
    answers = answers._replace(rows=rest)
    sentence = f"{first.name.capitalize()}: {first.values[0]}"
    best = found.fastest or found.cheapest
    sections = [("Layouts", blocks_html([layouts]))] if layouts.rows else []
    cards = {} if best is None else _cards(best)
    cards["layouts tried"] = f"{len(found.rows):,}"
    if best is None:
        return OnPage(found.target, "no", sentence, cards, sections, [answers])
    sections += [*plan_sections(best), *code_section(best)]
    return OnPage(best.estimate.class_name, found.verdict, sentence, cards, sections, [answers])


def _cards(best: TargetPlan) -> dict[str, str]:
    """The key figures of the best layout."""
    plan = best.plan
    cards = {} if plan.gpu is None else {"GPUs": f"{plan.layout.num_ranks} x {plan.gpu.name}"}
    cards["peak"] = compared_bytes(plan.peak_bytes)
    if plan.peak_reserved_bytes is not None:
        cards["reserved"] = compared_bytes(plan.peak_reserved_bytes)
    if plan.step_seconds is not None:
        cards["step time"] = seconds_text(plan.step_seconds)
    return {name: value.replace("NVIDIA ", "") for name, value in cards.items()}
