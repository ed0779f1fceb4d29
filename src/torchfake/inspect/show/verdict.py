"""The answer to whether something fits, as one line: the first that is shown.

Input: a :class:`Fit`, and what was run for it. Output: text. Invariant: it is judged by what the
caching allocator reserves, and says for which batch and sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchfake.errors import InputsError
from torchfake.inspect.inputs.resizing import BATCH, SEQ, size_of
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fit
from torchfake.inspect.records.units import compared_bytes


def verdict_text(fit: Fit, estimate: Estimate) -> str:
    """``yes: 5.2 GB (4.8 GiB) reserved of ..., on a ...; batch 8, seq 1024``."""
    usable = compared_bytes(fit.total_bytes - fit.reserved_bytes)
    spare = compared_bytes(abs(fit.headroom_bytes))
    reserved = compared_bytes(fit.peak_reserved_bytes)
    if fit.fits:
        answer = f"yes: {reserved} reserved of {usable}, {spare} to spare, on {fit.gpu}"
    else:
        answer = f"no: {reserved} reserved of {usable}, {spare} missing, on {fit.gpu}"
    return f"{answer}{sizes_text(estimate)}"


def verdict_on_several(fits: Sequence[Fit], estimate: Estimate, *, is_of_mesh: bool = False) -> str:
    """The same for several kinds of GPU, each for one process, or for each rank of a mesh."""
    remedy = "" if is_of_mesh else _remedy(fits, estimate)
    if len(fits) == 1:
        return f"{verdict_text(fits[0], estimate)}{remedy}"
    names = [
        f"{fit.gpu} (tight)" if fit.verdict == "tight" else fit.gpu for fit in fits if fit.fits
    ]
    if not names:
        return f"no, on none of the {len(fits)} GPUs{sizes_text(estimate)}{remedy}"
    on = f" of {len(fits)} GPUs" if len(names) < len(fits) else ""
    listed = ", ".join(names) if len(names) < len(fits) else f"all {len(fits)} GPUs"
    count = f"{len(names)}{on}: " if on else ""
    return f"yes, on {count}{listed}{sizes_text(estimate)}"


def _remedy(fits: Sequence[Fit], estimate: Estimate) -> str:
    """What to do where it fits on none, and no smaller batch would."""
    is_hopeless = not any(fit.fits or fit.largest for fit in fits)
    trains = estimate.mode == "training"
    return "; on several GPUs: see torchfake plan" if is_hopeless and trains else ""


def sizes_text(estimate: Estimate) -> str:
    """``; batch 8, seq 1024``: for which inputs, as far as that can be told."""
    sizes = ", ".join(_sizes(estimate))
    return f"; {sizes}" if sizes else ""


def _sizes(estimate: Estimate) -> Iterator[str]:
    step, subject = estimate.step, estimate.subject
    if step.serve is not None:
        yield f"{step.serve.users:,} users, a context of {step.serve.context:,}"
    if subject.program is not None or step.serve is not None:
        return
    names = (BATCH,) if step.decode is not None else (BATCH, SEQ)
    for name in names:
        try:
            yield f"{name} {size_of(replace(subject, device=None), name):,}"
        except InputsError:
            continue
    if step.accumulate > 1 or step.training is not None:
        number = (
            step.accumulate if step.training is None else step.training.gradient_accumulation_steps
        )
        yield from [f"{number} micro-batches"] if number > 1 else []
    if step.decode is not None:
        prompt, new = step.decode
        yield f"a prompt of {prompt:,}, {new:,} new tokens"
