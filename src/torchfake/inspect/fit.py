"""Which GPUs a step fits on, and how large a batch or sequence would.

Input: an estimate, the profiles of GPUs. Output: a :class:`Fit` for each. Invariant: every peak was
measured by a run on fakes of that GPU, and judged by what the caching allocator reserves for it;
nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from torchfake._core.arguments import is_whole_number
from torchfake._core.gpu_profiles import CudaProfile, named_profiles, usual_profiles
from torchfake.errors import InputsError
from torchfake.inspect.allocator.outside import CONTEXT_BYTES, MARGIN_BYTES
from torchfake.inspect.base_record import Record
from torchfake.inspect.describe.messages import one_line
from torchfake.inspect.estimates import Estimate
from torchfake.inspect.inputs.resizing import BATCH, SEQ
from torchfake.inspect.memory import estimate as estimate_of
from torchfake.inspect.search import MAX_SIZE, Peaks, Search, peaks_of, reserved_on
from torchfake.inspect.serve import Serve
from torchfake.inspect.serving.caches import config_of
from torchfake.inspect.several_gpus import Layout, call, layout_for, may_be_planned

RESERVED_BYTES = CONTEXT_BYTES + MARGIN_BYTES
"""Memory that the caching allocator does not get, by default 1 GiB: 512 MiB for the CUDA context,
512 MiB as a margin, for what kernels take while they run. Round figures, not measured ones."""

_TIGHT_SHARE = 0.05
"""Of a GPU's memory: what is less than that was found to be taken by what is not modelled."""

_USUAL_OF_SEVERAL = "h100-80gb"

SERVED = ("users", "context")
"""What varies of a model that is served."""


@dataclass(frozen=True)
class Fit:
    """Whether a step fits on one GPU."""

    gpu: str  # the profile's name
    total_bytes: int  # of the GPU's memory
    reserved_bytes: int  # of it, not for the caching allocator: the CUDA context, and a margin
    peak_bytes: int  # of the step, at the size it was estimated for
    vary: str | None  # "batch" or "seq"
    size: int | None  # of the batch or sequence it was estimated for
    largest: int | None  # size that fits; 0: none does
    limited_by: str | None  # "memory", "model" (it does not run on more) or "search" (MAX_SIZE)
    peak_reserved_bytes: int  # by the caching allocator for the step; the verdict is by these
    users: int | None = None  # that can be served, at most, with the context of the estimate
    context: int | None = None  # of the estimate's users, at most
    context_limited_by: str | None = None  # as `limited_by`
    serve: Serve | None = None  # how a model is served; `vary` is "users" then

    @property
    def tokens(self) -> int | None:
        """Tokens in the cache with the most users, or with the longest contexts."""
        if self.serve is None:
            return None
        of_users, of_context = (self.users or 0) * self.serve.context, self.context or 0
        return max(of_users, of_context * self.serve.users)

    @property
    def fits(self) -> bool:
        """Whether it fits at the size it was estimated for."""
        return self.headroom_bytes >= 0

    @property
    def verdict(self) -> str:
        """``"yes"``, ``"no"``, or ``"tight"``: it fits, with less than 5 % of the memory left."""
        if not self.fits:
            return "no"
        return "tight" if self.headroom_bytes < _TIGHT_SHARE * self.total_bytes else "yes"

    @property
    def headroom_bytes(self) -> int:
        """Bytes left at the peak of reserved memory; if negative, the bytes that are missing.

        Where memory is short, the allocator releases what it caches before it gives up, so a step
        that would reserve more if it could may fit with little left.
        """
        return self.total_bytes - self.reserved_bytes - self.peak_reserved_bytes

    def to_dict(self) -> dict[str, Any]:
        """All fields and derived values, as a dict for JSON."""
        found = {**self.__dict__, "fits": self.fits, "headroom_bytes": self.headroom_bytes}
        if self.serve is None:
            for name in ("users", "context", "context_limited_by", "serve"):
                del found[name]
            return found
        return {**found, "serve": self.serve.to_dict(), "tokens": self.tokens}


@dataclass(frozen=True, repr=False)
class Fits(Record, Sequence[Fit]):
    """A step on several GPUs."""

    estimate: Estimate
    items: tuple[Fit, ...]
    shown: Estimate  # of these GPUs the smallest on which it fits; the largest, if it fits on none
    mesh: str | None = None  # of a plan: the ranks, of which each has a GPU, and the sizes found
    layout: Layout | None = None  # on several GPUs, where it fits on none of them
    next_commands: tuple[str, ...] = ()  # what to run then, to paste

    @property
    def fits(self) -> bool:
        """Whether it fits on one of them."""
        return any(fit.fits for fit in self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def to_dict(self) -> dict[str, Any]:
        """The step on the GPU that is shown, and all fits, as a dict for JSON."""
        return {
            "estimate": self.shown.to_dict(),
            "fits": [fit.to_dict() for fit in self.items],
            **({} if self.mesh is None else {"mesh": self.mesh}),
            **({"next": list(self.next_commands)} if self.next_commands else {}),
        }


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
    if "gpu" in options:  # which estimate has
        raise TypeError("fit takes GPUs after its first argument: fit(model, 'h100-80gb')")
    named = _named(estimate, gpus)
    if serve is not None:
        estimate = _served(estimate, serve, next(iter(named.values())), options)
    elif isinstance(estimate, nn.Module):
        _check_inputs(estimate, options)
        estimate = estimate_of(estimate, **{"batch": _default_batch(options), **options})
    elif options:
        given = ", ".join(f"{name}=" for name in options)
        raise TypeError(f"fit takes {given} with a model, not with a {type(estimate).__name__}")
    if reserved_bytes is not None and not is_whole_number(reserved_bytes, 0):
        raise InputsError(f"reserved_bytes={reserved_bytes!r} is not a number of bytes")
    if not isinstance(estimate, Estimate):
        _check_name(vary)
        return _fits(peaks_of(estimate, vary, reserved_bytes), named)
    reserved_bytes = RESERVED_BYTES if reserved_bytes is None else reserved_bytes
    if len(estimate.subject.cuda_devices()) > 1:
        raise InputsError(
            "the step runs on several GPUs; fit finds out whether all of it fits on one"
        )
    if estimate.step.serve is not None:
        return _fits_served(estimate, estimate.step.serve, named, vary, reserved_bytes)
    _check_name(vary)
    _check_vary(estimate, vary)
    return _fits(Peaks(estimate, vary, reserved_bytes), named)


def _fits(peaks: Peaks, named: dict[str, CudaProfile]) -> Fits:
    size = peaks.current_size()
    fits = [_fit(name, gpu, peaks, size, searches=True) for name, gpu in named.items()]
    found = Fits(peaks.estimate, tuple(fits), _shown(fits, named, peaks), peaks.mesh)
    return found if found.fits or found.mesh is not None else _with_layout(found, named)


def _with_layout(fits: Fits, named: dict[str, CudaProfile]) -> Fits:
    """With what to do where it fits on none: the plan on several of the largest GPU."""
    if not may_be_planned(fits.shown):
        return fits
    largest = max(fits, key=lambda fit: fit.total_bytes)
    if len(named) == len(usual_profiles()):  # none was named
        largest = next((fit for fit in fits if fit.gpu == _USUAL_OF_SEVERAL), largest)
    usable = largest.total_bytes - largest.reserved_bytes
    layout = layout_for(fits.shown, largest.gpu, named[largest.gpu], usable)
    return replace(fits, layout=layout, next_commands=call(layout, fits.shown))


def _shown(fits: Sequence[Fit], named: dict[str, CudaProfile], peaks: Peaks) -> Estimate:
    """The step on the smallest GPU on which it fits, or on the largest."""
    by_size = sorted(fits, key=lambda fit: fit.total_bytes)
    chosen = next((fit for fit in by_size if fit.fits), by_size[-1])
    size = None if peaks.vary is None else chosen.size
    return peaks.shown(named[chosen.gpu], size)


def _named(subject: Any, gpus: tuple[Any, ...]) -> dict[str, CudaProfile]:
    """The profiles by name; a list of names counts as these names."""
    each = [gpu for item in gpus for gpu in (item if isinstance(item, list) else [item])]
    inputs = [gpu for gpu in each if isinstance(gpu, (torch.Tensor, Mapping, tuple))]
    if any(not isinstance(gpu, CudaProfile) for gpu in inputs):
        name = type(subject).__name__
        raise TypeError(f"inputs are for estimate: fit(estimate({name.lower()}, inputs), *gpus)")
    return named_profiles(each) or usual_profiles()


def _check_inputs(model: nn.Module, options: Mapping[str, Any]) -> None:
    if "input_size" not in options and not hasattr(model, "main_input_name"):
        name = type(model).__name__
        raise TypeError(
            f"fit takes the result of estimate, not a {name}, for which inputs cannot be "
            "generated: "
            f"fit(estimate({name.lower()}, inputs), *gpus), or input_size=(2, 64)"
        )


def _default_batch(options: Mapping[str, Any]) -> int | None:
    """The batch of a model for which nothing is said of the inputs."""
    return None if {"input_size", "decode", "training"} & set(options) else 1


def _served(model: Any, serve: Any, gpu: CudaProfile, options: Mapping[str, Any]) -> Estimate:
    if not isinstance(model, nn.Module):
        raise InputsError(
            f"serve= is for a model, not for a {type(model).__name__}: give fit(model, serve=...)"
        )
    return estimate_of(model, serve=serve, **{"gpu": gpu, **options})


def _check_name(vary: str | None) -> None:
    if vary not in (None, BATCH, SEQ):
        raise InputsError(f"vary={vary!r} is not 'batch', 'seq' or None")


def _check_vary(estimate: Estimate, vary: str | None) -> None:
    if vary is not None and estimate.subject.program is not None:
        raise InputsError(
            f"{estimate.class_name} is a step of your own, whose inputs cannot be resized here: "
            "use vary=None, and estimate it with other inputs"
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
    if estimate.cache is not None:  # the layers need not be asked again at other sizes
        step = replace(estimate.step, pages=estimate.cache.pages)
        estimate = replace(estimate, step=step)
    users = Peaks(estimate, "users", reserved_bytes)
    contexts = Peaks(estimate, "context", reserved_bytes)
    longest = _longest_context(estimate, serve)
    fits = []
    for name, gpu in named.items():
        found = replace(_fit(name, gpu, users, serve.users, searches=False), serve=serve)
        if vary in (BATCH, "users"):
            largest, limit = Search(users, gpu, serve.users).run()
            found = replace(found, largest=largest, limited_by=limit, users=largest)
        if vary in (BATCH, "context"):
            contexts.measured(gpu).setdefault(serve.context, users.measured(gpu)[serve.users])
            search = Search(contexts, gpu, serve.context, longest, serve.block_size)
            context, limit = search.run()
            found = replace(found, context=context, context_limited_by=limit)
        fits.append(found)
    return Fits(estimate, tuple(fits), _shown(fits, named, users))


def _longest_context(estimate: Estimate, serve: Serve) -> int:
    """The most tokens that the model has positions for, as its config says."""
    config = config_of(estimate.subject.module)
    positions = getattr(config, "max_position_embeddings", None)
    return max(positions, serve.context) if isinstance(positions, int) else MAX_SIZE


def _fit(name: str, gpu: CudaProfile, peaks: Peaks, size: int | None, *, searches: bool) -> Fit:
    reserved = peaks.peak(gpu, size)
    found = peaks.measured(gpu)[size]
    if reserved is None or found is None:
        raise InputsError(f"the step does not run on {name}: {one_line(peaks.failure)}")
    sizes = gpu.total_memory, peaks.reserved_bytes, found.peak_bytes
    fitted = Fit(name, *sizes, peaks.vary, size, None, None, reserved)
    if size is None or not searches:
        return fitted
    largest, limit = Search(peaks, gpu, size).run()
    return replace(fitted, largest=largest, limited_by=limit)


def verdict_on(estimate: Estimate, reserved_bytes: int = RESERVED_BYTES) -> Fit | None:
    """Whether the step of an estimate fits on the GPU that it is for; None on a CPU."""
    gpu = estimate.gpu
    if gpu is None:
        return None
    reserved = reserved_on(estimate, gpu.total_memory - reserved_bytes, gpu.total_memory)
    sizes = gpu.total_memory, reserved_bytes, estimate.peak_bytes
    return Fit(gpu.name, *sizes, None, None, None, None, reserved)
