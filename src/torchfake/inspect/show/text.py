"""Records as rows: what is shown of each, and in which words.

Input: any record. Output: blocks of rows, and lines, each a name and a text. Invariant: rows are
ASCII except for names that are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchfake.inspect.arithmetic.uncounted import uncounted_line
from torchfake.inspect.check import Checked
from torchfake.inspect.contents.diff import Diff
from torchfake.inspect.contents.weights import Weights
from torchfake.inspect.inputs.example_inputs import generated_inputs
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit, Fits, verdict_on
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.tensor_specs import to_lines
from torchfake.inspect.records.units import (
    bytes_text,
    compared_bytes,
    count_text,
    flops_text,
    number_text,
    operations_unit,
    rounded_text,
    seconds_text,
)
from torchfake.inspect.show.headline import headline, next_commands, training_lines
from torchfake.inspect.show.rows import VERDICT, Block, Column, Line, Row, as_lines, table
from torchfake.inspect.show.step_lines import active_text, peak_text, step_block, step_lines
from torchfake.inspect.show.step_time import launches_note, untimed_note
from torchfake.inspect.show.summary_table import tree_blocks
from torchfake.inspect.show.verdict import (
    asked_text,
    failure_note,
    largest_text,
    other_text,
    reserved_note,
    verdict_on_several,
    weights_verdict,
    which_shown,
)
from torchfake.inspect.summary import Summary


def totals(summary: Summary) -> Iterator[Line]:
    """The lines under a summary's table, each a name and a text."""
    size = summary.tree.size
    yield "parameters", f"{rounded_text(size.num_parameters)}, {bytes_text(size.parameter_bytes)}"
    yield "active", summary.active and active_text(summary.active)
    if size.num_frozen:
        yield "trainable", rounded_text(size.num_trainable)
        yield "frozen", rounded_text(size.num_frozen)
    if size.num_buffer_values:
        values = number_text(size.num_buffer_values, "value")
        yield "buffers", f"{values}, {bytes_text(size.buffer_bytes)}"
    yield "dtype", _shares(summary.by_dtype)
    yield "device", _shares(summary.by_device)
    if summary.inputs is None:
        return
    yield from (("input", f"{name} {text}") for name, text in to_lines(summary.inputs))
    flops, unit = summary.flops_of([""]), operations_unit()
    backward = f", {flops_text(flops.backward)} backward" if flops.backward else ""
    yield "operations", f"{flops_text(flops.forward)} forward{backward}"
    if flops.recomputed:
        again = f"of which the backward pass recomputes {flops_text(flops.recomputed)}"
        yield f"hardware {unit}", f"{flops_text(flops.hardware)}, {again}"
        yield f"model {unit}", f"{flops_text(flops.model)}, without what is recomputed"
    yield uncounted_line(summary.uncounted)


def costs(inspection: Inspection) -> Iterator[Line]:
    """The lines about building a target, each a name and a text."""
    summary, is_run = inspection.summary, inspection.memory is not None
    if not is_run and inspection.weights is None:
        yield from training_lines(summary)
    seconds = inspection.build_seconds, inspection.resolve_seconds
    yield "time", "{:.2f} s to build, {:.2f} s to import".format(*seconds)
    peak, increase = inspection.peak_rss_bytes, inspection.peak_rss_increase_bytes
    if peak is None or increase is None:
        yield "peak memory", "of this process not known on this platform"
    else:
        of_build = f"{bytes_text(increase)} to build"
        yield "peak memory", f"of this process {bytes_text(peak)}, {of_build}"
    yield from (("note", note) for note in inspection.notes)
    if inspection.has_inputs and not is_run:
        target = inspection.target, *inspection.config_words
        yield "next", next_commands(summary, target, inspection.option_words)


def quantized_lines(found: Weights | None) -> Iterator[Line]:
    """The lines about quantized weights, each a name and a text."""
    if found is None:
        return
    both = f"{compared_bytes(found.num_bytes)} {found.scheme}"
    yield "quantized", f"{both}, {compared_bytes(found.unquantized_bytes)} unquantized"
    yield "  format", found.held
    yield "  scheme", found.library
    if found.num_quantized or not found.library.startswith("quantization_config"):
        total = count_text(found.num_quantized + found.num_kept)
        yield "  covers", f"{count_text(found.num_quantized)} of {total} parameters"


@shown.register
def _(found: Weights, *, depth: int | None = None) -> list[Block]:
    about = quantized_lines(found)
    if not found.fits:
        return [as_lines(about)]
    refused = ", ".join(each.gpu for each in found.fits if each.is_refused)
    why = f"{refused}: the library's kernels do not run there"
    columns = (
        Column("GPU", "gpu"),
        _bytes("memory", "total_bytes"),
        _bytes("weights", lambda each: found.num_bytes),
        _bytes("headroom", "headroom_bytes"),
        _FITS,
    )
    note = "The model was not run: activations, caches and optimizer states are not included."
    answer = as_lines([("fits", weights_verdict(found)), ("not on", refused and why), *about])
    return [answer, table(found.fits, columns), Block(note=note)]


def _bytes(name: str, of: Any, need: int = 0) -> Column:
    """A column of bytes, in two units if there is room."""
    return Column(name, of, compared_bytes, bytes_text, need)


def _seconds_with_room(fit: Fit) -> float | None:
    """The time of a step where it fits."""
    return fit.step_seconds if fit.fits else None


_FITS = Column("fits", "verdict", emphasis=VERDICT)


def _shares(by_name: dict[str, tuple[int, int]]) -> str:
    """Bytes by dtype or device; only the name if there is a single one."""
    if len(by_name) == 1:
        return next(iter(by_name))
    return ", ".join(f"{name} {bytes_text(size)}" for name, (_, size) in by_name.items()) or "none"


@shown.register
def _(found: Summary, *, depth: int | None = None) -> list[Block]:
    lines = *totals(found), *training_lines(found), ("answered", found.answers)
    return [Block(heading=headline(found)), *tree_blocks(found, depth), as_lines(lines)]


@shown.register
def _(found: Inspection, *, depth: int | None = None) -> list[Block]:
    summary = found.summary
    lines = *totals(summary), *quantized_lines(found.weights), *costs(found)
    of_model = *tree_blocks(summary, depth), as_lines(lines)
    memory = found.memory
    if memory is None:
        parts = filter(None, (headline(summary, found.weights), found.checkpoint.text))
        return [Block(heading=" | ".join(parts)), *of_model]
    heading = headline(summary, found.weights, with_gpu=False)
    estimate = memory if isinstance(memory, Estimate) else memory.shown
    verdict = verdict_lines(memory)
    if not verdict:
        heading += f" | {estimate.counted.does}: peak {bytes_text(estimate.peak.num_bytes)}"
    answer = verdict or [("peak", peak_text(estimate))]
    return [
        Block(heading=heading), as_lines(answer), *of_model, *_memory(memory, of_model=True)
    ]  # fmt: skip


@shown.register(Estimate)
@shown.register(Fits)
def _(found: Estimate | Fits, *, depth: int | None = None) -> list[Block]:
    return _memory(found)


def _memory(found: Estimate | Fits, *, of_model: bool = False) -> list[Block]:
    """The blocks about the memory of a step; `of_model`: below those about a model, which have said
    whether it fits and which inputs were generated.
    """
    estimate, fit = (found, None) if isinstance(found, Estimate) else (found.shown, found.shown_fit)
    inputs = [] if of_model else [("input", generated_inputs(estimate.subject.kwargs))]
    verdict = [] if of_model else verdict_lines(found)
    which = which_shown(found) if isinstance(found, Fits) and len(found) > 1 else ""
    notes = [("note", found.notes)] if isinstance(found, Fits) and not of_model else []
    lines = *verdict, *inputs, *step_lines(estimate, fit, which), *notes
    step = step_block(estimate.peak, lines)
    return [step] if isinstance(found, Estimate) else [step, *_fits(found)]


def _fits(found: Fits) -> Iterator[Block]:
    """The table of GPUs, and the notes on it."""
    of_rank = "" if found.mesh is None else " of a rank"
    columns = (
        Column("GPU", "gpu"),
        _bytes("memory", "total_bytes", need=2),
        _bytes("peak", "peak_bytes", need=5),
        _bytes("reserved", "peak_reserved_bytes", need=3),
        _bytes("headroom", "headroom_bytes", need=4),
        _FITS,
        Column("step time", _seconds_with_room, seconds_text, need=1),
        Column("serves at most", largest_text, need=1, under="serves at most ")
        if found[0].serve is not None
        else Column(f"max {found[0].vary}{of_rank}", largest_text, str),
    )
    yield table(sorted(found, key=lambda fit: fit.total_bytes), columns)
    of_times = untimed_note(found), launches_note(found)
    notes = reserved_note(found), *of_times, failure_note(found, found.shown.step.loss)
    yield from (Block(note=note) for note in notes if note)


@shown.register
def _(found: Checked, *, depth: int | None = None) -> list[Block]:
    lines = [
        (f"{side} {name}".rstrip(), text)
        for side, specs in (("input", found.inputs), ("output", found.output))
        for name, text in to_lines(specs)
    ]
    return [as_lines([*lines, ("answered", found.answers)])]


@shown.register
def _(found: Diff, *, depth: int | None = None) -> list[Block]:
    def row(name: str, *texts: str, indent: int = 0) -> Row:
        plain = [text.encode("ascii", "backslashreplace").decode() for text in (name, *texts)]
        return Row(plain[0], (*plain[1:],), indent)

    blocks = [Block(heading=found.headline), Block([row(*each) for each in found.totals()])]
    for heading, count, differing in found.sections():
        rows = [row(line.name, line.text, indent=1) for line in differing]
        blocks.append(Block(rows, heading=f"{heading} ({count:,})"))
    notes = [row("note", note) for note in found.notes]
    return [*blocks, Block(notes, heading=f"alike ({found.num_equal:,})")]


def verdict_lines(found: Estimate | Fits) -> list[Line]:
    """The lines that say whether a step fits, and what to run next; none without a GPU."""
    if isinstance(found, Estimate):
        fit = None if found.subject.gpu is None else verdict_on(found)
        return [] if fit is None else [("fits", verdict_on_several([fit], found))]
    is_of_mesh = found.mesh is not None
    verdict = verdict_on_several(found, found.shown, is_of_mesh=is_of_mesh, refused=found.refused)
    refused = [(f"not on {gpu}", why) for gpu, why in found.refused.items()]
    other = ("quantized", other_text(found))
    verdict += asked_text(found)
    return [("fits", verdict), other, *refused, ("mesh", found.mesh), ("next", found.next_commands)]
