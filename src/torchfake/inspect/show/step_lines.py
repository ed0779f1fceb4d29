"""The lines about the loss and the time of a step.

Input: an estimate. Output: text; lines, each a name and a text. Invariant: a time that leaves out a
part of the step is named a lower bound.
"""

from __future__ import annotations

from torch import nn

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.arithmetic.uncounted import untimed_lines
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.records.units import bytes_text, seconds_text, short_name
from torchfake.inspect.steps.backward import SUM_OF_OUTPUT
from torchfake.inspect.timing.compared import error_text, kind_of_model
from torchfake.inspect.timing.hardware import why_untimed
from torchfake.inspect.timing.schedule import GenerationTime, Schedule
from torchfake.inspect.timing.slow_products import slow_products

_MUCH_MORE = 2
"""How many times as much work has to take as long for the line about launches to be shown."""

_WORTH = 0.25
"""The share of a step from which on the line about a faster dtype is shown."""


def time_lines(estimate: Estimate) -> list[tuple[str, str]]:
    """What was run besides the step that is shown, and the time of the step."""
    return _sequence_lines(estimate) + _time_lines(estimate)


def _time_lines(estimate: Estimate) -> list[tuple[str, str]]:
    """The time of a step on a GPU whose figures are known; that of serving is not estimated."""
    if estimate.gpu is None:
        return []
    if why := why_untimed(estimate.gpu):
        return [("step time", why)]
    if estimate.step.serve is not None:
        return [("step time", f"not estimated for {estimate.mode}, only for steps and passes")]
    if estimate.generation is not None:
        return [("time", _generation_text(estimate.generation)), _error_line(estimate)]
    schedule = estimate.schedule
    if schedule is None:
        return []
    seconds = f"{'at least ' * schedule.is_lower_bound}{seconds_text(schedule.seconds)}"
    lines = [("step time", f"{seconds} on {estimate.gpu.name}"), *untimed_lines(schedule.untimed)]
    lines += [_error_line(estimate), *_bound_lines(estimate, schedule)]
    return lines + _faster_lines(schedule, estimate.gpu)


def kind_of(estimate: Estimate) -> str:
    """The kind of model, by its inputs, as docs/time.md gives the error of times."""
    inputs = estimate.subject.held_by_inputs
    return kind_of_model(each for each in inputs if not isinstance(each, nn.Parameter))


def _error_line(estimate: Estimate) -> tuple[str, str]:
    is_training = estimate.mode == "training"
    return "  error", error_text(estimate.gpu, kind_of(estimate), is_training=is_training)


def _generation_text(found: GenerationTime) -> str:
    total, prompt = seconds_text(found.seconds), seconds_text(found.prompt_seconds)
    if not found.num_passes:
        return f"{total} for the prompt and one token"
    return f"{total}: {prompt} for the prompt, then {seconds_text(found.seconds_per_token)} a token"


def _bound_lines(estimate: Estimate, schedule: Schedule) -> list[tuple[str, str]]:
    """That the host bounds the time, and which batch would take as long."""
    times, batch = schedule.times_as_much, estimate.counted.batch
    if times < _MUCH_MORE:
        return []
    host, gpu = map(seconds_text, (schedule.host_seconds, schedule.computing_seconds))
    more = "" if batch is None else f"; batch {times * batch:,} would take about as long"
    return [("  bound by", f"launches: the host takes {host}, the GPU {gpu}{more}")]


def _sequence_lines(estimate: Estimate) -> list[tuple[str, str]]:
    """What was run besides the step that is shown: steps of other lengths, and an evaluation."""
    lines = []
    if lengths := estimate.step.lengths:
        of = f"{min(lengths):,} to {max(lengths):,} tokens"
        shown = f"the peak is that of {estimate.counted.seq:,}, reserved that of all in this order"
        lines.append(("lengths", f"{len(lengths):,} steps of {of}; {shown}"))
    if estimate.evaluation_peak_bytes is not None:
        peak, batch = bytes_text(estimate.evaluation_peak_bytes), estimate.step.evaluation
        lines.append(("evaluation", f"a peak of {peak} with batch {batch:,}, in training's memory"))
    return lines


def _faster_lines(schedule: Schedule, gpu: CudaProfile) -> list[tuple[str, str]]:
    """How much of the time another dtype saves, if that is a good part of it."""
    found = slow_products(schedule.commands, gpu)
    if found is None:
        return []
    least = max(schedule.host_seconds, schedule.seconds - found.seconds + found.fast_seconds)
    if schedule.seconds - least < _WORTH * schedule.seconds:
        return []
    slow = " and ".join(map(short_name, found.slow))
    took, takes = seconds_text(found.seconds), seconds_text(found.fast_seconds)
    what = f"{took} of it for matrix products in {slow}, without tensor cores"
    return [("  faster", f"{what}; with autocast to {short_name(found.fast)} {takes}")]


def loss_text(loss: str) -> str:
    """What the backward pass begins with, and if that is no loss, how to give one."""
    if loss != SUM_OF_OUTPUT:
        return loss
    return f"{loss}, which has none; example_inputs(..., labels=True) or loss= gives another one"
