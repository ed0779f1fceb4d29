"""Which GPUs a step fits on, and the largest batch or sequence that fits.

Input: an estimate, the profiles of GPUs. Output: a :class:`Fit` for each GPU. Invariant: every peak
was measured by a run on fakes of that GPU, and the verdict compares the memory that the caching
allocator reserves with the GPU's; nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torchfake._core.arguments import is_whole_number
from torchfake._core.gpu_profiles import CudaProfile, named_profiles, usual_profiles
from torchfake._progress import progress
from torchfake.errors import InputsError
from torchfake.inspect.contents.positions import positions_of
from torchfake.inspect.copies.workload import check_module, kind_of
from torchfake.inspect.inputs.example_inputs import has_inputs
from torchfake.inspect.inputs.hints import example_shape
from torchfake.inspect.inputs.resizing import BATCH, SEQ
from torchfake.inspect.memory import several_gpus
from torchfake.inspect.memory.estimate import estimate as estimate_of
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit_record import RESERVED_BYTES as RESERVED_BYTES
from torchfake.inspect.memory.fit_record import Fit as Fit
from torchfake.inspect.memory.fit_record import Fits as Fits
from torchfake.inspect.memory.fit_record import chosen_of
from torchfake.inspect.memory.limited import reserved_on, reserved_with_room
from torchfake.inspect.memory.peaks import Peaks, peaks_of
from torchfake.inspect.memory.search import MAX_SIZE, Search
from torchfake.inspect.memory.small_heap import small_heap
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.serve import Serve

_NOT_RUN = RuntimeError("it was not run")
_USUAL_OF_SEVERAL = "h100-80gb"

_MOST_BATCHES = 3  # gradients of earlier micro-batches may leave no room for the largest

_INPUTS = "inputs are for estimate: fit(estimate(model, inputs), *gpus)"

SERVED = ("users", "context")
"""The sizes that may vary when a model is served."""


def fit(
    estimate: Any,
    *gpus: str | CudaProfile,
    vary: str | None = BATCH,
    reserved_bytes: int | None = None,
    serve: Serve | None = None,
    **options: Any,
) -> Fits:
    """Find which GPUs the step of an estimate fits on, and the largest batch or sequence that fits.

    The step is run again on fakes for each GPU type, because kernels and workspaces differ. The
    largest size is found by running the step at other sizes.

    Args:
        estimate: the result of :func:`estimate`, on any device; or of :func:`torchfake.plan` or
            ``plan_target``, in which case every rank has such a GPU, and the size of one rank's
            inputs is varied; or a model, for which a step is estimated with `options`.
        gpus: profiles or their names, see :func:`torchfake.profiles`: ``"h100"``,
            ``"h100, a100-80gb"``, or ``"all"``; by default a selection of common GPUs.
        vary: ``"batch"``, ``"seq"``, or None for neither. When serving: ``"users"``, ``"context"``,
            or None; by default both.
        reserved_bytes: memory of the GPU that the caching allocator cannot use; by default 512 MiB
            for the CUDA context and 512 MiB as a margin, or the value of the plan.
        serve: the serving workload: ``fit(model, serve=s)`` is ``fit(estimate(model, serve=s))``.
        options: for a model, the options of :func:`estimate`, such as ``batch=8, seq=512``.

    Raises:
        DeviceError: if a profile does not exist.
        InputsError: if the inputs have no dimension that can be varied.

    >>> import torch
    >>> from torchfake import fake_mode
    >>> from torchfake.inspect import estimate
    >>> with fake_mode():
    ...     layer, x = torch.nn.Linear(8192, 8192), torch.empty(1024, 8192)
    >>> found, = fit(estimate(layer, x, optimizer="adamw"), "t4-16gb")
    >>> found.fits, found.largest > 100_000
    (True, True)
    """
    _check_options(options)
    named = _named(gpus)
    if isinstance(estimate, str):
        words = _words(options, named if gpus else ())
        check_module(estimate, "fit", words)
    if serve is not None:
        estimate = _served(estimate, serve, next(iter(named.values())), options)
    elif isinstance(estimate, nn.Module):
        _check_inputs(estimate, options)
        estimate = estimate_of(estimate, **{"batch": _default_batch(options), **options})
    elif options:
        given = ", ".join(f"{name}=" for name in options)
        raise TypeError(f"fit takes {given} with a model, not with {kind_of(estimate)}")
    if reserved_bytes is not None and not is_whole_number(reserved_bytes, 0):
        raise InputsError(f"reserved_bytes={reserved_bytes!r} is not a number of bytes")
    if not isinstance(estimate, Estimate):
        _check_name(vary)
        return _fits(peaks_of(estimate, vary, reserved_bytes, named.values()), named)
    reserved_bytes = RESERVED_BYTES if reserved_bytes is None else reserved_bytes
    if len(estimate.subject.cuda_devices()) > 1:
        raise InputsError(
            "the step runs on several GPUs; fit finds out whether all of it fits on one"
        )
    if estimate.step.serve is not None:
        with progress("Fitting"), small_heap():
            return _fits_served(estimate, estimate.step.serve, named, vary, reserved_bytes)
    _check_name(vary)
    _check_vary(estimate, vary)
    return _fits(Peaks(estimate, vary, reserved_bytes, named.values()), named)


def _fits(peaks: Peaks, named: dict[str, CudaProfile]) -> Fits:
    size = peaks.current_size()
    refused: dict[str, str] = {}

    def fit_on(name: str, gpu: CudaProfile) -> Fit:
        return _fit(name, gpu, peaks, size, searches=True)

    with progress("Fitting"), small_heap():
        fits = [*_each(named, refused, fit_on)]
    shown = _shown(fits, named, peaks)
    found = Fits(peaks.estimate, tuple(fits), shown, peaks.mesh, refused=refused)
    if found.fits or found.mesh is not None:
        return found
    return _with_layout(found, named, _accumulated(found, named, peaks))


def _each(
    named: dict[str, CudaProfile],
    refused: dict[str, str],
    fit_on: Callable[[str, CudaProfile], Fit],
) -> Iterator[Fit]:
    """The fit on each GPU; GPUs that the step does not run on are added to `refused`.

    Raises:
        InputsError: if the step runs on none.
    """
    for name, gpu in named.items():
        try:
            yield fit_on(name, gpu)
        except InputsError as error:
            refused[name] = str(error)
            if len(refused) == len(named):
                raise


def _accumulated(fits: Fits, named: dict[str, CudaProfile], peaks: Peaks) -> Iterator[str]:
    """The call for the step in the largest micro-batches that fit, of a few that are run."""
    best = max(fits, key=lambda fit: fit.largest or 0)
    batch, step = best.size or 1, peaks.estimate.step
    if peaks.vary != BATCH or not best.largest or not several_gpus.may_be_planned(fits.shown):
        return
    sizes = [n for n in range(min(best.largest, batch), 0, -1) if batch % n == 0]
    for size in sizes[:_MOST_BATCHES]:
        number = step.accumulate * batch // size
        text = several_gpus.accumulated_call(fits.shown, best.gpu, size, number)
        again = replace(peaks.estimate, step=replace(step, accumulate=number))
        run = Peaks(again, BATCH, peaks.reserved_bytes)
        reserved = run.peak(named[best.gpu], size) if text else None
        if text and reserved is not None and reserved <= best.usable_bytes:
            yield text
            return


def _with_layout(fits: Fits, named: dict[str, CudaProfile], smaller: Iterable[str]) -> Fits:
    """The fits, which are all negative, with a plan to try on several of the largest GPU; before it
    the calls with a smaller batch.
    """
    if not several_gpus.may_be_planned(fits.shown):
        return fits
    largest = max(fits, key=lambda fit: fit.total_bytes)
    if len(named) == len(usual_profiles()):  # the user named no GPU
        largest = next((fit for fit in fits if fit.gpu == _USUAL_OF_SEVERAL), largest)
    usable = largest.total_bytes - largest.reserved_bytes
    layout = several_gpus.layout_for(fits.shown, largest.gpu, named[largest.gpu], usable)
    code = several_gpus.call(layout, fits.shown) if several_gpus.is_plain(fits.shown) else ()
    return replace(fits, layout=layout, next_commands=(*smaller, *code))


def _shown(fits: Sequence[Fit], named: dict[str, CudaProfile], peaks: Peaks) -> Estimate:
    chosen = chosen_of(fits)
    return peaks.shown(named[chosen.gpu], None if peaks.vary is None else chosen.size)


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that belong elsewhere in the call."""
    if not {"gpu", "gpus"}.isdisjoint(options):  # the former is an option of estimate alone
        raise TypeError("fit takes GPUs after its first argument: fit(model, 'h100-80gb')")
    if "inputs" in options:
        raise TypeError(_INPUTS)


_AS_GIVEN = (
    "batch", "seq", "optimizer", "autocast", "accumulate", "answer", "allocator", "weights",
)  # fmt: skip
"""Options of :func:`estimate` that the command line has too, with the same values."""


def _words(options: Mapping[str, Any], gpus: Iterable[str]) -> list[str]:
    """The options of the command ``fit`` that correspond to those of a call."""
    given = {f"--{name}": options.get(name) for name in _AS_GIVEN}
    given["--gpu"] = ",".join(gpus) or None
    found = [str(w) for pair in given.items() if isinstance(pair[1], (str, int)) for w in pair]
    return [*found, *(["--train"] if options.get("mode") == "training" else [])]


def _named(gpus: tuple[Any, ...]) -> dict[str, CudaProfile]:
    """The profiles by name; a list among `gpus` counts as its items."""
    each = [gpu for item in gpus for gpu in (item if isinstance(item, list) else [item])]
    if any(isinstance(gpu, Serve) for gpu in each):
        raise TypeError("a Serve is no GPU: fit(model, *gpus, serve=Serve(...))")
    inputs = [gpu for gpu in each if isinstance(gpu, (torch.Tensor, Mapping, tuple))]
    if any(not isinstance(gpu, CudaProfile) for gpu in inputs):
        raise TypeError(_INPUTS)
    return named_profiles(each) or usual_profiles()


def _check_inputs(model: nn.Module, options: Mapping[str, Any]) -> None:
    if "input_size" not in options and not has_inputs(model):
        name = type(model).__name__
        raise TypeError(
            f"fit takes the result of estimate, not a {name}, for which inputs cannot be "
            "generated: fit(estimate(model, inputs), *gpus), or "
            f"input_size={example_shape(model)[1]}"
        )


def _default_batch(options: Mapping[str, Any]) -> int | None:
    """The batch size of the generated inputs: 1, unless the options determine the inputs."""
    return None if {"input_size", "training"} & set(options) else 1


def _served(model: Any, serve: Any, gpu: CudaProfile, options: Mapping[str, Any]) -> Estimate:
    if not isinstance(model, nn.Module):
        raise InputsError(
            f"serve= is for a model, not for a {type(model).__name__}: give fit(model, serve=...)"
        )
    return estimate_of(model, serve=serve, **{"gpu": gpu, **options})


def _check_name(vary: str | None) -> None:
    if vary not in (None, BATCH, SEQ):
        why = "is for serve=" if vary in SERVED else "is not known"
        raise InputsError(f"vary={vary!r} {why}: give vary='batch', vary='seq' or vary=None")


def _check_vary(estimate: Estimate, vary: str | None) -> None:
    if vary is not None and estimate.subject.program is not None:
        raise InputsError(
            f"{estimate.class_name} is a step of your own, whose inputs cannot be resized here: "
            "use vary=None, and estimate it with other inputs"
        )
    if vary == SEQ and estimate.step.lengths:
        raise InputsError(
            "lengths= gives the lengths itself, so 'seq' cannot vary: use vary='batch' or None"
        )
    if vary == SEQ and estimate.step.decode is not None:
        raise InputsError(
            "decode= gives the lengths itself, so 'seq' cannot vary: use vary='batch' or None"
        )


def _fits_served(
    estimate: Estimate,
    serve: Serve,
    named: dict[str, CudaProfile],
    vary: str | None,
    reserved_bytes: int,
) -> Fits:
    """The largest number of users, and the longest context, on each GPU."""
    if vary not in (None, BATCH, *SERVED):
        raise InputsError(f"vary={vary!r} is not 'users', 'context' or None: a model is served")
    if estimate.cache is not None:  # what each layer caches per token is the same at other sizes
        step = replace(estimate.step, pages=estimate.cache.pages)
        estimate = replace(estimate, step=step, commands=())  # serving is not timed
    users = Peaks(estimate, "users", reserved_bytes, named.values())
    contexts = Peaks(estimate, "context", reserved_bytes, named.values())

    def fit_on(name: str, gpu: CudaProfile) -> Fit:
        found = replace(_fit(name, gpu, users, serve.users, searches=False), serve=serve)
        if vary in (BATCH, "users"):
            largest, limit = Search(users, gpu, serve.users).run()
            found = replace(found, largest=largest, limited_by=limit, users=largest)
        return _with_context(found, gpu, users, contexts) if vary in (BATCH, "context") else found

    refused: dict[str, str] = {}
    fits = [*_each(named, refused, fit_on)]
    return Fits(estimate, tuple(fits), _shown(fits, named, users), refused=refused)


def _with_context(found: Fit, gpu: CudaProfile, users: Peaks, contexts: Peaks) -> Fit:
    """The fit with the longest context that fits."""
    serve = found.serve
    assert serve is not None
    positions = positions_of(users.estimate.subject.module)
    longest = MAX_SIZE if positions is None else positions.number
    size = min(serve.context, longest)
    if size == serve.context:
        contexts.measured(gpu).setdefault(size, users.measured(gpu)[serve.users])
    contexts.peak(gpu, size)
    context, limit = Search(contexts, gpu, size, longest, serve.block_size).run()
    return replace(found, context=context, context_limited_by=limit)


def _fit(name: str, gpu: CudaProfile, peaks: Peaks, size: int | None, *, searches: bool) -> Fit:
    reserved = peaks.peak(gpu, size)
    found = peaks.measured(gpu)[size]
    if reserved is None or found is None:
        raise InputsError(
            f"the step does not run on {name}: {one_line(peaks.failures.get(size, _NOT_RUN))}"
        )
    sizes = gpu.total_memory, peaks.reserved_bytes, found.peak_bytes
    with_room = reserved_with_room(peaks.estimates(found))
    fitted = Fit(name, *sizes, peaks.vary, size, None, None, reserved, with_room)
    if (timed := peaks.timed(gpu, size)) is not None:
        is_bound = timed.schedule is not None and timed.schedule.is_bound_by_launches
        fitted = replace(fitted, step_seconds=timed.step_seconds, is_bound_by_launches=is_bound)
    if size is None or not searches:
        return fitted
    largest, limit = Search(peaks, gpu, size).run()
    failing = [n for n in peaks.failures if n is not None and n > size]
    failure = None
    if limit == "model" and largest == size and failing:
        why = one_line(peaks.failures[min(failing)])
        failure = f"at {peaks.vary} {min(failing):,} the step does not run: {why}"
    return replace(fitted, largest=largest, limited_by=limit, failure=failure)


def verdict_on(estimate: Estimate, reserved_bytes: int = RESERVED_BYTES) -> Fit | None:
    """Whether the step of an estimate fits on the estimate's GPU; None on a CPU."""
    gpu = estimate.gpu
    if gpu is None:
        return None
    reserved = reserved_on(estimate, gpu.total_memory - reserved_bytes, gpu.total_memory)
    sizes = gpu.total_memory, reserved_bytes, estimate.peak_bytes
    with_room = reserved_with_room([estimate])
    return Fit(gpu.name, *sizes, None, None, None, None, reserved, with_room)
