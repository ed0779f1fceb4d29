"""Options with which a plan that does not fit does.

Input: a TargetPlan that does not fit, and a function that plans it with other options. Output: the
same plan, with a remedy. Invariant: a remedy was planned, and fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from torchfake._progress import progress
from torchfake.errors import InputsError
from torchfake.inspect.next_commands import EXPANDABLE, OF_WEIGHTS

Options = dict[str, Any]


def with_remedy(found: Any, plan_with: Callable[..., Any], first: Iterable[Options] = ()) -> Any:
    """The plan with the first options that make it fit, if it does not and any do.

    Args:
        found: the :class:`TargetPlan`.
        plan_with: plans the same again, with other options.
        first: options to try before all others.
    """
    if found.fits:
        return found
    with progress("Trying"):
        for options in (*first, *_candidates(found)):
            try:
                tried = plan_with(**options)
                if tried.fits:
                    return _remedied(found, tried, _text(options))
            except InputsError:  # the model or the layout does not support the option
                continue
    return found


def _remedied(found: Any, tried: Any, options: str) -> Any:
    """The plan with options that were tried, what they need on the CPU and, if that is little, what
    they leave on the GPU.
    """
    cpu_bytes = tried.plan.cpu_bytes if tried.strategy.offload else 0
    fit = tried.plan.fit
    left = fit.headroom_bytes if fit is not None and fit.verdict == "tight" else None
    return replace(found, remedy=options, remedy_cpu_bytes=cpu_bytes, remedy_headroom_bytes=left)


def _candidates(found: Any) -> Iterator[Options]:
    """Options to try, those that cost least time first, then together."""
    of_states, of_activations = _of_states(found), _of_activations(found)
    held = found.plan.highest.most_bytes
    fit = found.plan.fit
    is_default = not found.estimate.step.allocator.text
    if is_default and fit is not None and fit.peak_bytes <= fit.usable_bytes:
        yield {"allocator": EXPANDABLE}
    has_room = fit is not None and sum(held[name] for name in OF_WEIGHTS) < fit.usable_bytes
    if has_room:
        yield from _each(of_activations)
    yield from _each({name: value for name, value in of_states.items() if name != "offload"})
    together = {**of_states, **of_activations}
    without = {name: value for name, value in together.items() if name != "offload"}
    if of_states and without:
        yield without
    if "offload" in of_states:
        yield {"offload": True}
        yield together


def _each(options: Options) -> Iterator[Options]:
    """Each option that has a value alone, with those that it clears; and all of them."""
    cleared = {name: value for name, value in options.items() if value is None}
    given = {name: value for name, value in options.items() if value is not None}
    yield from ({name: value, **cleared} for name, value in given.items())
    if len(given) > 1:
        yield options


def _of_activations(found: Any) -> Options:
    smaller: Options = {"micro_batch": 1, "accumulate": None} if found.batch.micro > 1 else {}
    full: Options = {"checkpoint": "full"} if found.strategy.checkpoint != "full" else {}
    return {**smaller, **full}


def _of_states(found: Any) -> Options:
    strategy, options = found.strategy, {}
    if strategy.engine == "ddp":
        return {"engine": "fsdp2", "zero": None}
    if strategy.stage == 2:
        options["zero"] = 3
    if not strategy.offload and strategy.axes.wraps_modules:
        options["offload"] = True
    return options


def _text(options: Options) -> str:
    words = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        words += [] if value is None else [option] if value is True else [option, str(value)]
    return " ".join(words)
