"""Whether a step fits, as one line, which is shown first.

Input: a :class:`Fit`, and its estimate. Output: text. Invariant: the line compares the memory that
the caching allocator reserves, and gives the time with its error, the batch size and the length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torchfake._core.gpu_profiles import usual_profiles
from torchfake.inspect.contents.weights import Weights, WeightsFit
from torchfake.inspect.inputs.resizing import BATCH
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit, Fits
from torchfake.inspect.records.units import compared_bytes, count_text, number_text
from torchfake.inspect.show.step_time import time_in_short
from torchfake.inspect.steps.backward import SUM_OF_OUTPUT

WITHIN_ERROR = "less than the error of 5 %"
"""What is said of memory that is left where a verdict is tight (docs/memory.md)."""


UNQUANTIZED = ", unquantized"
"""What is said with "no" where it is not of the format that the model's config gives weights."""


def verdict_text(
    fit: Fit, counted: str, time: str, num_gpus: int = 1, *, is_quantized: bool = True
) -> str:
    """The verdict on one GPU: ``yes: 5.2 GB (4.8 GiB) reserved of ..., on ...; inference``; it
    begins with the verdict of tables and of JSON: yes, tight or no. If the allocator has to free
    cached blocks, that follows, and that it takes time. Where it is tight, what is left is less
    than the error of estimates (docs/memory.md).

    Args:
        fit: the verdict.
        counted: what was counted, as text.
        time: how long it takes where it fits, as text; "" if that is not known.
        num_gpus: on how many GPUs.
        is_quantized: whether the weights have the format that the model's config gives them.
    """
    usable = compared_bytes(fit.usable_bytes)
    spare = compared_bytes(abs(fit.headroom_bytes))
    reserved = compared_bytes(fit.peak_reserved_bytes)
    left = f"{spare} {'to spare' if fit.fits else 'missing'}"
    left += f", {WITHIN_ERROR}" * (fit.verdict == "tight")
    time += ", more while blocks are freed" * (fit.frees_cached_blocks and bool(time))
    verdict = f"{fit.verdict}{', by freeing cached blocks' * fit.frees_cached_blocks}"
    verdict += UNQUANTIZED * (not fit.fits and not is_quantized)
    gpu = fit.gpu if num_gpus == 1 else f"each of {num_gpus:,} x {fit.gpu}"
    where = ", ".join(filter(None, [f"on {gpu}", time if fit.fits else ""]))
    return f"{verdict}: {reserved} reserved of {usable}, {left}, {where}; {counted}"


def verdict_on_several(
    fits: Sequence[Fit],
    estimate: Estimate,
    *,
    is_of_mesh: bool = False,
    refused: Collection[str] = (),
) -> str:
    """The verdict on several kinds of GPU, for one process or for each rank of a mesh.

    Args:
        fits: the verdict on each GPU that the step runs on.
        estimate: the estimate of the step.
        is_of_mesh: whether the step is that of each rank of a mesh.
        refused: the GPUs that the step does not run on.
    """
    is_hopeless = not is_of_mesh and not any(fit.fits or fit.largest for fit in fits)
    remedy = "; with checkpointing, or on several GPUs: see torchfake plan"
    remedy *= estimate.mode == "training" and is_hopeless
    counted = counted_text(estimate, batch_of_rank(estimate) if is_of_mesh else None)
    gpus = [*refused, *(fit.gpu for fit in fits)]
    is_quantized = not estimate.counted.other_format
    if len(gpus) == 1:
        time = time_in_short(estimate)
        return f"{verdict_text(fits[0], counted, time, is_quantized=is_quantized)}{remedy}"
    if [fit.verdict for fit in fits] == ["yes"] * len(gpus):
        return f"yes, on each of {_number_of(gpus)}; {counted}"
    answer, where = _answer(fits, gpus)
    answer += UNQUANTIZED * (answer == "no" and not is_quantized)
    return f"{answer}, on {where}; {counted}{remedy}"


def other_text(fits: Fits) -> str:
    """What is known of the format in the model's config, where that was not counted: the size of
    the weights, and the command that counts with it.
    """
    name, weights = fits.estimate.counted.other_format, fits.other_weights
    if not name:
        return ""
    size = "" if weights is None else f"{compared_bytes(weights.num_bytes)} of "
    command = f": {fits.other_command}" * bool(fits.other_command)
    return f"{size}weights in {name} were not counted{command}"


def reserved_note(fits: Sequence[Fit]) -> str:
    """The note on memory that the caching allocator cannot use, and where it has to free some."""
    sizes = " or ".join(compared_bytes(n) for n in sorted({fit.reserved_bytes for fit in fits}))
    note = f"{sizes} of each GPU is reserved for the CUDA context and as a margin."
    freed = [fit.gpu for fit in fits if fit.frees_cached_blocks]
    by_freeing = "the step fits only if the allocator frees cached blocks and tries again"
    return f"{note} On {', '.join(freed)}, {by_freeing}." if freed else note


def weights_verdict(found: Weights) -> str:
    """The verdict on weights alone: ``yes for the weights alone, on 1 of 2 GPUs: ...``."""
    gpus = [fit.gpu for fit in found.fits]
    answer, where = _answer(found.fits, gpus)
    where = gpus[0] if len(gpus) == 1 else where
    if answer == "no":
        return f"no, on {where}: not even the weights alone{in_part(found)}"
    return f"{answer} for the weights alone{in_part(found)}, on {where}; no step was run"


def in_part(found: Weights) -> str:
    """``, 15B of 671B params in fp8`` if less than half of the parameters are quantized, or ""."""
    total = found.num_quantized + found.num_kept
    if not 0 < 2 * found.num_quantized < total:
        return ""
    return f", {count_text(found.num_quantized)} of {count_text(total)} params in {found.scheme}"


def failure_note(fits: Sequence[Fit], loss: object) -> str:
    """The note on a step that runs at no larger size than the given one, with its error there."""
    failure = next((fit.failure for fit in fits if fit.failure is not None), None)
    if failure is None:
        return ""
    remedy = "; what loss= refers to keeps its size: make it an input" if loss is not None else ""
    return f"{failure[0].upper()}{failure[1:]}{remedy}"


_WHY = {"model": " (the model's limit)", "search": " or more"}


def largest_text(fit: Fit) -> str:
    """The largest size that fits, and what limits it if not the memory; for a served model, the
    most users that fit, and the longest context that fits.
    """
    if fit.serve is None:
        if not fit.largest:
            return "" if fit.largest is None else "none"
        if fit.failure is not None:
            return f"{fit.largest:,} (no larger one runs)"
        return f"{fit.largest:,}{_WHY.get(fit.limited_by or '', '')}"
    found = []
    if fit.users:
        why = _WHY.get(fit.limited_by or "", "")
        found.append(f"{number_text(fit.users, 'user')}{why} x {fit.serve.context:,} tokens")
    if fit.context:
        why = _WHY.get(fit.context_limited_by or "", "")
        found.append(f"{number_text(fit.serve.users, 'user')} x {fit.context:,} tokens{why}")
    is_searched = fit.users is not None or fit.context is not None
    return " or ".join(found) or "none" * is_searched


def asked_text(fits: Sequence[Fit]) -> str:
    """``; max seq 1,024 (the model's limit)``: the largest size that fits on any of the GPUs, where
    another one than the batch was asked for.
    """
    best = max(fits, key=lambda fit: (fit.users or fit.largest or 0, fit.context or 0))
    largest, on = largest_text(best), f" on {best.gpu}" * (len(fits) > 1)
    if best.vary in (None, BATCH) or not largest:
        return ""
    what = "serves at most" if best.serve is not None else f"max {best.vary}"
    return f"; {what} {largest}{'' if largest == 'none' else on}"


def which_shown(fits: Fits) -> str:
    """Which of several GPUs the step is shown on."""
    return "the smallest that it fits on" if fits.fits else "the largest"


_NUM_NAMED = 6
"""How many GPUs the verdict names where something fits on more of them; a table has them all."""


def _answer(fits: Sequence[Fit] | Sequence[WeightsFit], gpus: Sequence[str]) -> tuple[str, str]:
    """The best verdict, and on which of some GPUs that is so; beside it where it is tight."""
    sure, tight = ([fit.gpu for fit in fits if fit.verdict == v] for v in ("yes", "tight"))
    if not sure and not tight:
        return "no", f"none of {_number_of(gpus)}"
    where = f"{len(sure or tight)} of {_number_of(gpus)}: {_named(sure or tight)}"
    where += f", tight on {len(tight)} more: {_named(tight)}" * bool(sure and tight)
    return "yes" if sure else "tight", where


def _named(gpus: Sequence[str]) -> str:
    """Some GPUs; of many the first."""
    more = len(gpus) - _NUM_NAMED
    return f"{', '.join(gpus[:_NUM_NAMED])} and {more} more" if more > 1 else ", ".join(gpus)


def _number_of(gpus: Sequence[str]) -> str:
    """The number of GPUs; those that are tried if none is named are called common ones."""
    return f"{len(gpus)} {'common ' * ({*gpus} == {*usual_profiles()})}GPUs"


def counted_text(
    estimate: Estimate, batch: str | None = None, precision: str | None = None, trained: str = ""
) -> str:
    """What was counted: ``training with adamw in bf16, batch 8 per GPU, global batch 8, seq 128``.

    Args:
        estimate: the estimate of the step.
        batch: the batch of all ranks, as text; by default that of one GPU.
        precision: in what is computed, as text; by default the dtype of the parameters.
        trained: what is trained, as text; by default what the estimate says.
    """
    within = precision or estimate.counted.dtype
    in_dtype = "" if within is None else f" in {within}"
    in_dtype += ", which seldom converges," * estimate.counted.trains_in_fp16
    counted = _counted(
        estimate, batch, f"{in_dtype}{not_in(estimate.counted.other_format)}", trained
    )
    return ", ".join(part for part in counted if part)


def not_in(other_format: str) -> str:
    """What is said of the format in a model's config that was not counted; "" for ""."""
    return f" and not in the {other_format} of its quantization_config" * bool(other_format)


def batch_of_rank(estimate: Estimate) -> str:
    """The batch of one of several ranks, as text; that of all ranks is not known."""
    batch = estimate.counted.batch
    return "" if batch is None else f"batch {batch:,} per rank"


def _batch(estimate: Estimate) -> str:
    counted, per_gpu = estimate.counted, " per GPU" if estimate.gpu is not None else ""
    if counted.batch is None:
        return ""
    own = f"batch {counted.batch:,}{per_gpu}"
    return f"{own}{global_batch_text(counted.global_batch, counted.micro_batches)}"


def global_batch_text(size: int | None, micro_batches: int) -> str:
    """``, global batch 32 (4 micro-batches)``; "" if there is none."""
    made_of = f" ({micro_batches:,} micro-batches)" if micro_batches > 1 else ""
    return "" if size is None else f", global batch {size:,}{made_of}"


def _counted(estimate: Estimate, batch: str | None, within: str, trained: str) -> Iterator[str]:
    counted, step = estimate.counted, estimate.step
    counted = counted._replace(trained=trained or counted.trained)
    if step.serve is not None:
        users, context = step.serve.users, step.serve.context
        yield f"serving {number_text(users, 'user')}{within}, a context of {context:,}"
    else:
        loss = f" on {SUM_OF_OUTPUT}" if estimate.loss == SUM_OF_OUTPUT else ""
        yield counted.does + within + loss
    yield _batch(estimate) if batch is None else batch
    if counted.seq is not None:
        yield f"{'text' if counted.denoises else 'seq'} {counted.seq:,}"
    if counted.not_given:
        yield f"no {counted.not_given}"
    if step.decode is not None:
        prompt, new = step.decode
        yield f"a prompt of {prompt:,}, {new:,} new tokens"
    if counted.max_positions is not None:
        yield f"past the model's {counted.max_positions:,} positions"
