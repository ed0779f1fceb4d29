"""Records as rows: what is shown of each, and in which words.

Input: any record. Output: blocks of rows, and lines, each a name and a text. Invariant: rows are
ASCII except for names that are not.
"""

from __future__ import annotations

from torchfake.inspect.arithmetic.uncounted import uncounted_lines
from torchfake.inspect.check import Checked
from torchfake.inspect.contents.diff import Diff
from torchfake.inspect.contents.experts import Active
from torchfake.inspect.contents.schemes import scheme_named
from torchfake.inspect.contents.tree import Size
from torchfake.inspect.contents.weights import Weights
from torchfake.inspect.inspection import Inspection
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit, Fits, verdict_on
from torchfake.inspect.records.messages import answer_lines
from torchfake.inspect.records.record import shown
from torchfake.inspect.records.tensor_specs import to_lines
from torchfake.inspect.records.units import (
    bytes_text,
    compared_bytes,
    count_text,
    flops_text,
    operations_unit,
)
from torchfake.inspect.show.headline import headline, next_lines, training_lines
from torchfake.inspect.show.rows import VERDICT, Block, Column, Line, Row, as_lines
from torchfake.inspect.show.serving_text import served_text, serving_lines
from torchfake.inspect.show.step_lines import loss_text, time_lines
from torchfake.inspect.show.summary_table import tree_blocks
from torchfake.inspect.show.verdict import (
    counted_text,
    verdict_on_several,
    weights_verdict,
)
from torchfake.inspect.show.verdict import reserved_note as reserved_note
from torchfake.inspect.steps.adapters import adapters_text
from torchfake.inspect.steps.step import Step
from torchfake.inspect.summary import Summary


def totals(summary: Summary) -> list[Line]:
    """The lines under a summary's table, each a name and a text."""
    size = summary.tree.size
    lines = [("parameters", _parameters_text(size))]
    if summary.active is not None:
        lines.append(("active", active_text(summary.active)))
    if size.num_frozen:
        lines.append(("trainable", _exact_and_rounded(size.num_trainable)))
        lines.append(("frozen", _exact_and_rounded(size.num_frozen)))
    if size.num_buffer_values:
        num_values = f"{size.num_buffer_values:,} value{'s' * (size.num_buffer_values > 1)}"
        lines.append(("buffers", f"{num_values}, {bytes_text(size.buffer_bytes)}"))
    lines.append(("dtype", _shares(summary.by_dtype)))
    lines.append(("device", _shares(summary.by_device)))
    if summary.inputs is not None:
        lines += [("input", f"{name} {text}") for name, text in to_lines(summary.inputs)]
        flops = summary.flops_of([""])
        backward = f", {flops_text(flops.backward)} backward" if flops.backward else ""
        lines.append(("operations", f"{flops_text(flops.forward)} forward{backward}"))
        if flops.recomputed:
            unit = operations_unit()
            lines.append(
                (f"hardware {unit}", f"{flops_text(flops.hardware)}, recomputation included")
            )
            lines.append((f"model {unit}", f"{flops_text(flops.model)}, without recomputation"))
        lines += uncounted_lines(summary.uncounted)
    return lines


def summary_lines(summary: Summary) -> list[Line]:
    """The lines under a summary's table, and the answers to unknown values."""
    return totals(summary) + training_lines(summary) + answer_lines(summary.answers)


def costs(inspection: Inspection) -> list[Line]:
    """The lines about building a target, each a name and a text."""
    summary, is_run = inspection.summary, inspection.memory is not None
    lines = [] if is_run or inspection.weights is not None else training_lines(summary)
    lines += [("time", _time_text(inspection)), ("peak memory", _memory_text(inspection))]
    lines += [("note", note) for note in inspection.notes]
    if inspection.has_inputs and not is_run:
        target = inspection.target, *inspection.config_words
        lines += next_lines(summary, target, inspection.option_words)
    return lines


def quantized_lines(found: Weights | None) -> list[Line]:
    """The lines about quantized weights, each a name and a text."""
    if found is None:
        return []
    both = f"{compared_bytes(found.num_bytes)} {found.scheme}"
    both += f", {compared_bytes(found.unquantized_bytes)} unquantized"
    total = found.num_quantized + found.num_kept
    share = f"{count_text(found.num_quantized)} of {count_text(total)} parameters"
    lines = [("quantized", both), ("  format", found.held), ("  scheme", found.library)]
    is_known = found.num_quantized or not found.library.startswith("quantization_config")
    return [*lines, ("  covers", share)] if is_known else lines


@shown.register
def _(found: Weights, *, depth: int | None = None) -> list[Block]:
    about = quantized_lines(found)
    if not found.fits:
        return [as_lines(about)]
    refused = [each.gpu for each in found.fits if each.is_refused]
    why = f"{', '.join(refused)}: the library's kernels do not run there"
    not_on = [("not on", why)] if refused else []
    rows = [
        Row(each.gpu, (each.total_bytes, found.num_bytes, each.headroom_bytes, each.verdict))
        for each in found.fits
    ]
    columns = (
        Column("GPU"), *(_size_column(name) for name in ("memory", "weights", "headroom")), _FITS
    )  # fmt: skip
    note = "The model was not run: activations, caches and optimizer states are not included."
    answer = as_lines([("fits", weights_verdict(found)), *not_on, *about])
    return [answer, Block(rows, columns), Block(note=note)]


def _size_column(name: str, need: int = 0) -> Column:
    """A column of bytes, in two units if there is room."""
    return Column(name, compared_bytes, bytes_text, need)


_FITS = Column("fits", emphasis=VERDICT)


def _parameters_text(size: Size) -> str:
    return f"{_exact_and_rounded(size.num_parameters)}, {bytes_text(size.parameter_bytes)}"


def active_text(active: Active) -> str:
    """The number of parameters used for one token, and the numbers of experts."""
    experts = " or ".join(active.experts)
    return f"{_exact_and_rounded(active.num_parameters)}, {experts} experts for each token"


def _exact_and_rounded(count: int) -> str:
    return f"{count:,} ({count_text(count)})" if count >= 1000 else str(count)


def _shares(by_name: dict[str, tuple[int, int]]) -> str:
    """Bytes by dtype or device; only the name if there is a single one."""
    if len(by_name) == 1:
        return next(iter(by_name))
    return ", ".join(f"{name} {bytes_text(size)}" for name, (_, size) in by_name.items()) or "none"


def _time_text(found: Inspection) -> str:
    return f"{found.build_seconds:.2f} s to build, {found.resolve_seconds:.2f} s to import"


def _memory_text(found: Inspection) -> str:
    if found.peak_rss_bytes is None or found.peak_rss_increase_bytes is None:
        return "not known on this platform"
    increase = bytes_text(found.peak_rss_increase_bytes)
    return f"{increase} to build, {bytes_text(found.peak_rss_bytes)} for the whole process"


@shown.register
def _(found: Summary, *, depth: int | None = None) -> list[Block]:
    tree = tree_blocks(found, depth=found.depth if depth is None else depth)
    return [Block(heading=headline(found)), *tree, as_lines(summary_lines(found))]


@shown.register
def _(found: Inspection, *, depth: int | None = None) -> list[Block]:
    summary = found.summary
    tree = tree_blocks(summary, depth=summary.depth if depth is None else depth)
    below = as_lines(totals(summary) + quantized_lines(found.weights) + costs(found))
    memory = [] if found.memory is None else shown(found.memory)
    return [Block(heading=headline(summary, found.weights)), *tree, below, *memory]


@shown.register
def _(found: Estimate, *, depth: int | None = None) -> list[Block]:
    return [_step_block(found, verdict_lines(found))]


@shown.register
def _(found: Fits, *, depth: int | None = None) -> list[Block]:
    rows = [_fit_row(fit) for fit in sorted(found, key=lambda fit: fit.total_bytes)]
    step = _step_block(found.shown, verdict_lines(found), found.shown_fit)
    return [step, Block(rows, _fit_columns(found)), Block(note=reserved_note(found))]


def _step_block(found: Estimate, verdict: list[Line], fit: Fit | None = None) -> Block:
    """The lines about a step, with a bar for each category of memory at the peak."""
    peak = found.peak
    shares = {name: n / max(peak.num_bytes, 1) for name, n in peak.by_category.items()}
    return as_lines(verdict + estimate_lines(found, fit), shares)


@shown.register
def _(found: Checked, *, depth: int | None = None) -> list[Block]:
    return [as_lines(checked_lines(found))]


@shown.register
def _(found: Diff, *, depth: int | None = None) -> list[Block]:
    def ascii(text: str) -> str:
        return text.encode("ascii", "backslashreplace").decode()

    both = [Row(name, tuple(map(ascii, values))) for name, *values in found.totals()]
    blocks = [Block(heading=found.headline), Block(both)]
    for heading, count, differing in found.sections():
        rows = [Row(ascii(line.name), (ascii(line.text),), 1) for line in differing]
        blocks.append(Block(rows, heading=f"{heading} ({count:,})"))
    notes = [Row("note", (ascii(note),)) for note in found.notes]
    return [*blocks, Block(notes, heading=f"alike ({found.num_equal:,})")]


def verdict_lines(found: Estimate | Fits) -> list[Line]:
    """The lines that say whether a step fits, and what to run next; none without a GPU."""
    if isinstance(found, Fits):
        mesh = [] if found.mesh is None else [("mesh", found.mesh)]
        is_of_mesh = found.mesh is not None
        verdict = verdict_on_several(
            found, found.shown, is_of_mesh=is_of_mesh, refused=found.refused
        )
        next_ones = zip(
            ("next", *[""] * len(found.next_commands)), found.next_commands, strict=False
        )
        refused = [(f"not on {gpu}", why) for gpu, why in found.refused.items()]
        return [("fits", verdict), *refused, *mesh, *next_ones]
    fit = None if found.subject.gpu is None else verdict_on(found)
    return [] if fit is None else [("fits", verdict_on_several([fit], found))]


def estimate_lines(estimate: Estimate, fit: Fit | None = None) -> list[Line]:
    """The lines of an estimate, each a name and a text; `fit` is the verdict, if there is one."""
    peak = estimate.peak
    where = estimate.device if estimate.gpu is None else f"{estimate.device}, {estimate.gpu.name}"
    where += ", which is assumed: gpu= names another" if estimate.is_gpu_assumed else ""
    lines = [("step", _step_text(estimate, where)), *_changed_lines(estimate.step)]
    lines += [] if estimate.loss is None else [("loss", loss_text(estimate.loss))]
    lines += [("warning", sentence) for sentence in estimate.counted.warnings]
    lines.append(("peak", _peak_text(estimate)))
    lines += [(f"  {name}", bytes_text(n)) for name, n in peak.by_category.items()]
    if estimate.active is not None:
        total = sum(p.numel() for p in estimate.subject.module.parameters())
        lines.append(("parameters", f"{count_text(total)}, active {active_text(estimate.active)}"))
    lines += serving_lines(estimate)
    if peak.line:
        lines.append(("line", peak.line))
    if estimate.peak_reserved_bytes is not None:
        lines.append(("reserved", _reserved_text(estimate, fit or verdict_on(estimate))))
    if estimate.first_step_peak_bytes < estimate.peak_bytes:
        lines.append(("first step", bytes_text(estimate.first_step_peak_bytes)))
    lines += time_lines(estimate)
    others = {"cpu": "CPU memory"}
    lines += [
        (others.get(name, f"on {name}"), bytes_text(n))
        for name, n in estimate.elsewhere.items()
        if n
    ]
    lines += uncounted_lines(estimate.uncounted)
    lines += [("" if i else "left out", line) for i, line in enumerate(estimate.left_out)]
    return lines + answer_lines(estimate.answers)


def _changed_lines(step: Step) -> list[Line]:
    """The lines about quantized weights and adapters."""
    lines = []
    if step.weights is not None:
        scheme = scheme_named(step.weights)
        packing = f", packed as {scheme.packing}" if scheme.packing else ""
        lines.append(("weights", f"{step.weights}: {scheme.library}{packing}"))
    if step.peft is not None:
        lines.append(("adapters", adapters_text(step.peft)))
    return lines


def _step_text(estimate: Estimate, where: str) -> str:
    """The kind of step and its device; unless a GPU is named, which has a verdict,
    also its sizes.
    """
    if estimate.subject.gpu is not None:
        return f"{estimate.counted.does} on {where}"
    does, _, sizes = counted_text(estimate).partition(", ")
    return f"{does} on {where}" + (f"; {sizes}" if sizes else "")


def _reserved_text(estimate: Estimate, fit: Fit | None) -> str:
    """The reserved memory: as much as the verdict says, which may be less on a GPU that is full.

    What the peak is less is shown, not ``fragmentation_bytes``: the allocator may reach the most
    reserved memory at a moment at which hardly any is allocated.
    """
    reserved = estimate.peak_reserved_bytes or 0
    if fit is not None and fit.peak_reserved_bytes != reserved:
        within = f"{compared_bytes(fit.peak_reserved_bytes)} by the caching allocator"
        return f"{within}, {bytes_text(reserved)} where there is room"
    text = f"{compared_bytes(reserved)} by the caching allocator"
    more = estimate.reserved_beyond_peak_bytes or 0
    return f"{text}, {bytes_text(more)} more than the peak" if more > 0 else text


def _peak_text(estimate: Estimate) -> str:
    peak = estimate.peak
    when = {"optimizer": "in the optimizer's step", "start": "before it begins"}
    size = bytes_text if estimate.gpu is None else compared_bytes
    text = f"{size(peak.num_bytes)} {when.get(peak.phase, f'in the {peak.phase} pass')}"
    if peak.phase in ("prefill", "decode"):
        text = f"{size(peak.num_bytes)} in the {peak.phase}"
    text += f", in {peak.module}" if peak.module else ""
    return text + (f", {peak.op}" if peak.op else "")


def _fit_columns(fits: Fits) -> tuple[Column, ...]:
    """The columns of a table of fits."""
    of_rank = "" if fits.mesh is None else " of a rank"
    largest = Column("" if fits[0].vary is None else f"max {fits[0].vary}{of_rank}", str)
    if fits[0].serve is not None:
        largest = Column("serves at most", need=1, under="serves at most ")
    needed = {"memory": 2, "peak": 5, "reserved": 3, "headroom": 4}
    sizes = (_size_column(name, need) for name, need in needed.items())
    return (Column("GPU"), *sizes, _FITS, largest)


def _fit_row(fit: Fit) -> Row:
    sizes = fit.total_bytes, fit.peak_bytes, fit.peak_reserved_bytes, fit.headroom_bytes
    return Row(fit.gpu, (*sizes, fit.verdict, largest_text(fit)))


def largest_text(fit: Fit) -> str:
    """The largest size that fits, and what limits it if not the memory."""
    if fit.serve is not None:
        return served_text(fit)
    if fit.largest is None:
        return ""
    if fit.largest == 0:
        return "none"
    why = {"model": " (the model's limit)", "search": " or more"}.get(fit.limited_by or "", "")
    return f"{fit.largest:,}{why}"


def checked_lines(checked: Checked) -> list[Line]:
    """The lines of a check, each a name and a text."""
    inputs = [(f"input {name}".rstrip(), text) for name, text in to_lines(checked.inputs)]
    outputs = [(f"output {name}".rstrip(), text) for name, text in to_lines(checked.output)]
    return inputs + outputs + answer_lines(checked.answers)
